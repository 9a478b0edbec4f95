"""Messages to clients and their answers, each with its own deadline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from partavg.flower import messages

Arrived = tuple[int, Message | str]
"""A node, and its answer or why there is none."""

_LOOKS = 600  # a second at most, for the answers of all clients: each is work for the SuperLink
_LAST_LOOK = 0.5  # seconds between two looks for an answer that is slow to come


@dataclass(slots=True)
class Transport:
    """Sends messages by a Grid and waits for the answers; counts the bytes of both."""

    grid: Grid

    def nodes(self) -> list[int]:
        """The nodes that Flower takes to be there."""
        return sorted(self.grid.get_node_ids())

    def ask(
        self, contents: Mapping[int, RecordDict], action: str, turn: int, seconds: float
    ) -> Iterator["Answer"]:
        """Send a message to each of some nodes; yield an answer for each, in the order they come.

        One thread looks for each answer: a node that dies while it answers blocks whoever waits
        for it, and must not block the others.
        """
        outgoing = {
            node: Message(
                content, dst_node_id=node, message_type=action, ttl=seconds, group_id=str(turn)
            )
            for node, content in contents.items()
        }
        sent = {node: messages.size(message) for node, message in outgoing.items()}
        ends = monotonic() + seconds
        pushed = set(self.grid.push_messages(list(outgoing.values())))
        arrivals: SimpleQueue[Arrived] = SimpleQueue()
        stop = Event()
        for node, message in outgoing.items():
            number = message.metadata.message_id
            if number in pushed:
                arguments = (node, number, len(outgoing) / _LOOKS, ends, arrivals, stop)
                Thread(target=self._wait, args=arguments, daemon=True).start()
            else:
                arrivals.put((node, "its message could not be sent"))
        del outgoing
        missing = set(contents)
        while missing:
            try:
                node, answer = arrivals.get(timeout=max(0.01, ends - monotonic()))
            except Empty:
                break
            missing.discard(node)
            yield _answer(node, answer, sent[node])
        stop.set()
        for node in sorted(missing):
            yield Answer(node, None, f"it did not answer within {seconds:g} s", sent[node], 0)

    def _wait(
        self,
        node: int,
        number: str,
        shortest: float,
        ends: float,
        arrivals: "SimpleQueue[Arrived]",
        stop: Event,
    ) -> None:
        began, reason = monotonic(), ""
        while monotonic() < ends and not stop.is_set():
            try:
                for message in self.grid.pull_messages([number]):
                    arrivals.put((node, message))
                    return
            except Exception as error:  # the connection's; it may come back before the deadline
                reason = f"its answer could not be fetched ({error})"
            # Look often for quick answers and seldom for slow ones: 5 % late at most.
            pause = max(shortest, min(_LAST_LOOK, 0.05 * (monotonic() - began)))
            stop.wait(min(pause, max(0.0, ends - monotonic())))
        if reason:
            arrivals.put((node, reason))


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's answer, or why there is none, and the bytes to and from it."""

    node: int
    content: RecordDict | None
    problem: str
    sent: int
    received: int


def _answer(node: int, answer: Message | str, sent: int) -> Answer:
    if isinstance(answer, str):
        return Answer(node, None, answer, sent, 0)
    received = messages.size(answer)
    if answer.has_error():
        error = answer.error
        words = " ".join((error.reason or "no reason given").split())
        return Answer(node, None, f"error {error.code}: {words[:300]}", sent, received)
    return Answer(node, answer.content, "", sent, received)
