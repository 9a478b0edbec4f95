"""New nodes introduce themselves while others train: nobody waits for them."""

import logging
import secrets
from dataclasses import dataclass, field
from time import monotonic

from partavg.flower import messages
from partavg.flower.identity import check_signature
from partavg.flower.messages import Hello, Question
from partavg.flower.protocol import Agreement
from partavg.flower.roster import Member, Roster
from partavg.flower.rules import Rules
from partavg.flower.transport import Answer, Sent, Transport
from partavg.sentences import cleaned

log = logging.getLogger("flwr")

INTRODUCE = "query.partavg"
"""What a message asks for, as Flower names it; app.py answers."""
_AGAIN, _SELDOM = 30.0, 3600.0  # seconds until a node that could not join is asked again
_AT_ONCE = 64  # questions on their way
_PATIENCE = 120.0  # seconds for an answer: a process may have to start


@dataclass(slots=True)
class _Asked:
    """A question on its way to a node."""

    question: Question
    sent: Sent


@dataclass(slots=True)
class Welcome:
    """Asks nodes that are not known who they are, and takes up what they answer, without waiting.

    A node that says nothing, or cannot join, is asked again later and later.
    """

    transport: Transport
    agreement: Agreement
    rules: Rules
    token: str
    _asked: dict[int, _Asked] = field(default_factory=dict)
    _tries: dict[int, int] = field(default_factory=dict)
    _later: dict[int, float] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether a node was asked and has not answered yet."""
        return bool(self._asked)

    def look(self, roster: Roster) -> None:
        """Let in who has answered by now, and ask who is new."""
        for node, asked in list(self._asked.items()):
            answer = asked.sent.take()
            if answer:
                del self._asked[node]
                self._take_up(answer, asked.question, roster)
        known = {member.node for member in roster.values()} | self._asked.keys()
        strangers = [node for node in self.transport.nodes() if node not in known]
        new = [node for node in strangers if self._later.get(node, 0.0) <= monotonic()]
        seconds = min(_PATIENCE, self.rules.deadline)
        for node in new[: _AT_ONCE - len(self._asked)]:
            question = Question(self.token, secrets.token_hex(16))
            contents = {node: messages.write(messages.ORDER, question)}
            most = {node: messages.BESIDE}
            sent = self.transport.send(contents, INTRODUCE, 0, seconds, most)
            self._asked[node] = _Asked(question, sent)

    def _take_up(self, answer: Answer, question: Question, roster: Roster) -> None:
        try:
            hello = self._checked(answer, question)
            self._enter(hello, answer.node, roster)
        except ValueError as error:
            tries = self._tries.get(answer.node, 0)
            pause = min(_SELDOM, _AGAIN * 2**tries)
            self._tries[answer.node] = min(tries + 1, 16)
            self._later[answer.node] = monotonic() + pause
            why = cleaned(str(error))
            log.warning("node %d cannot join: %s; asked again in %.0f s", answer.node, why, pause)

    def _checked(self, answer: Answer, question: Question) -> Hello:
        """What a node says of itself, if that can be."""
        if answer.content is None:
            raise ValueError(answer.problem)
        hello = messages.read(answer.content, messages.REPLY, Hello)
        messages.check_without_array(answer.content)
        messages.check_without_scores(answer.content)
        clients = self.rules.clients
        if not 0 <= hello.client < clients:
            raise ValueError(
                f"it says it is client {hello.client}, and training.workers = {clients}: give its "
                f"node a partition-id from 0 to {clients - 1}"
            )
        self.rules.check_samples(hello.client, hello.samples)
        self.rules.check_samples(hello.client, hello.tests, 0, "test ")
        if hello.digest != self.agreement.digest():
            raise ValueError(
                f"client {hello.client} has another model, partition or solver: give it the same "
                f"app and the same version of partavg"
            )
        self.rules.check_key(hello.client, hello.key)
        if hello.key:
            about = {"node": answer.node, "token": question.token, "nonce": question.nonce}
            check_signature(answer.content, messages.REPLY, about, hello.key)
        return hello

    def _enter(self, hello: Hello, node: int, roster: Roster) -> None:
        old = roster.get(hello.client)
        if old and old.key != hello.key and old.key and self.rules.keys is None:
            raise ValueError(
                f"client {hello.client} is known by another key: let it keep its own, or name the "
                f"keys of all clients in flower.keys"
            )
        if old and old.node in self.transport.nodes():
            raise ValueError(
                f"client {hello.client} is there already, on node {old.node}: give each node a "
                f"partition-id of its own"
            )
        if old:
            old.node, old.samples, old.key = node, hello.samples, hello.key
            old.tests = hello.tests
        else:
            roster[hello.client] = Member(node, hello.samples, key=hello.key, tests=hello.tests)
        self._tries.pop(node, None)
        log.info("client %d joined on node %d", hello.client, node)
