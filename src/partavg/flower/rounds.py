"""Asking clients, checking what they answer, and going on without those that fail."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep

from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from partavg.flower import messages
from partavg.flower.messages import Hello, Order, Reply
from partavg.flower.orders import Orders
from partavg.flower.protocol import Agreement
from partavg.flower.roster import Member, Roster
from partavg.flower.transport import Answer, Transport

log = logging.getLogger("flwr")

# What a message asks for, as Flower names it; app.py answers.
CARRY_OUT, INTRODUCE = "train.partavg", "query.partavg"
_AGAIN = 30.0  # seconds until a node that could not introduce itself is asked again


class TooFewClients(RuntimeError):
    """Fewer clients answer than must; all that was averaged is saved."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may take part, and how long the others wait."""

    clients: int
    min_clients: int
    deadline: float = 300.0
    """Seconds for one answer."""
    wait: float = 60.0
    """Seconds to wait at the start for all clients; then `min_clients` are enough."""
    patience: float = 600.0
    """Seconds to wait for `min_clients` before giving up."""
    catch_up: str = "parts"
    """How a client that was away becomes whole: by "parts" as they come round, or one "whole"."""
    weights: str | tuple[float, ...] = "uniform"
    """By a policy, or a number per client."""
    max_samples: int = 10_000_000


@dataclass(slots=True)
class Round:
    """One round of messages: what came back, and who is missing."""

    replies: dict[int, Reply] = field(default_factory=dict)
    arrays: dict[int, Tensor] = field(default_factory=dict)
    away: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


class Rounds:
    """The clients, asked one round after another."""

    def __init__(self, transport: Transport, agreement: Agreement, rules: Rules) -> None:
        self.roster = Roster()
        self._transport, self._agreement, self._rules = transport, agreement, rules
        self._later: dict[int, float] = {}

    def gather(self) -> None:
        """Wait for all clients; after a while for as many as must be there."""
        rules, began = self._rules, monotonic()
        while True:
            self._welcome(rules.deadline)
            here, waited = len(self._here()), monotonic() - began
            if here >= (rules.clients if waited < rules.wait else rules.min_clients):
                return
            if waited > max(rules.wait, rules.patience):
                raise TooFewClients(
                    f"{here} of {rules.clients} clients came within {waited:.0f} s, and "
                    f"flower.min_clients = {rules.min_clients} must: start more SuperNodes"
                )
            sleep(min(0.5, 0.1 + 0.05 * waited))

    def ask(self, clients: Sequence[int], orders: Orders, *, need: int) -> Round:
        """Ask clients until enough of them gave an answer that holds; name those that did not."""
        began, rules, step = monotonic(), self._rules, orders.until
        found = Round()
        while True:
            self._welcome(min(rules.deadline, 60.0))
            self._ask_missing(found, clients, orders)
            if len(found.replies) >= need:
                break
            if monotonic() - began > rules.patience:
                raise TooFewClients(
                    f"{len(found.replies)} of {len(clients)} clients answered at step {step} "
                    f"within {rules.patience:g} s, and {need} must ({_reasons(found.away)}): mend "
                    f"that, then start again with flower.resume = true"
                )
            sleep(min(1.0, rules.patience / 20))
        for client, reason in sorted(found.away.items()):
            log.warning("%s is left out at step %d: %s", self._name(client), step, reason)
            if client in self.roster:
                self.roster[client].away.append((step, reason))
        found.seconds = monotonic() - began
        return found

    def _ask_missing(self, found: Round, clients: Sequence[int], orders: Orders) -> None:
        """One try; what was answered in an earlier one still counts."""
        here, roster = self._here(), self.roster
        found.away = {
            client: "its node is not connected" if client in roster else "it never joined"
            for client in clients
            if client not in found.replies
        }
        asked = {c: orders.order(c, roster[c]) for c in found.away if c in here}
        nodes = {roster[client].node: client for client in asked}
        contents = {
            roster[client].node: messages.write(messages.ORDER, order, handout.array)
            for client, (order, handout) in asked.items()
        }
        for answer in self._transport.ask(contents, CARRY_OUT, orders.turn, self._rules.deadline):
            client = nodes[answer.node]
            order, handout = asked[client]
            member = roster[client]
            member.received += answer.sent
            member.sent += answer.received
            try:
                reply, array = self._checked(answer, client, order)
            except ValueError as error:
                found.away[client] = str(error)
                continue
            member.messages += 1
            member.heard(order.turn, handout.parts)
            del found.away[client]
            found.replies[client] = reply
            if array is not None:
                found.arrays[client] = array
        # Sums must not depend on who was quickest.
        found.replies = dict(sorted(found.replies.items()))
        found.arrays = dict(sorted(found.arrays.items()))

    def _checked(self, answer: Answer, client: int, order: Order) -> tuple[Reply, Tensor | None]:
        """An answer that may touch the model; a ValueError says why another may not."""
        member = self.roster[client]
        if answer.content is None:
            raise ValueError(answer.problem)
        reply = messages.read(answer.content, messages.REPLY, Reply)
        if (reply.turn, reply.client) != (order.turn, client):
            raise ValueError(
                f"it answered for client {reply.client} and turn {reply.turn}, not {client} and "
                f"{order.turn}"
            )
        if reply.lost:
            member.turn = -1
            raise ValueError("it does not have its state any more, and gets the whole model next")
        if reply.samples != member.samples:
            raise ValueError(
                f"it counts {reply.samples} samples, and {member.samples} when it joined"
            )
        length = self._agreement.sent_length(order)
        if length == 0:
            return reply, None
        return reply, messages.unpack(answer.content, length, self._agreement.model.dtype)

    def _here(self) -> set[int]:
        """The clients whose nodes are connected."""
        listed = set(self._transport.nodes())
        return {client for client, member in self.roster.items() if member.node in listed}

    def _welcome(self, seconds: float) -> None:
        """Let nodes that are not known introduce themselves."""
        known, now = {member.node for member in self.roster.values()}, monotonic()
        strangers = [node for node in self._transport.nodes() if node not in known]
        new = [node for node in strangers if self._later.get(node, 0.0) <= now]
        contents = {node: RecordDict({messages.ORDER: ConfigRecord({})}) for node in new}
        if not contents:
            return
        for answer in self._transport.ask(contents, INTRODUCE, 0, seconds):
            try:
                self._enter(answer)
            except ValueError as error:
                log.warning("node %d cannot join: %s", answer.node, error)
                self._later[answer.node] = monotonic() + _AGAIN

    def _enter(self, answer: Answer) -> None:
        if answer.content is None:
            raise ValueError(answer.problem)
        hello = messages.read(answer.content, messages.REPLY, Hello)
        if not 0 <= hello.client < self._rules.clients:
            raise ValueError(
                f"it says it is client {hello.client}, and training.workers = "
                f"{self._rules.clients}: give its node a partition-id from 0 to "
                f"{self._rules.clients - 1}"
            )
        if not 1 <= hello.samples <= self._rules.max_samples:
            raise ValueError(
                f"client {hello.client} counts {hello.samples} samples, which is not between 1 and "
                f"flower.max_samples = {self._rules.max_samples}"
            )
        if hello.digest != self._agreement.digest():
            raise ValueError(
                f"client {hello.client} has another model, partition or solver: give it the same "
                f"app and the same version of partavg"
            )
        old = self.roster.get(hello.client)
        if old and old.node in self._transport.nodes():
            raise ValueError(
                f"client {hello.client} is there already, on node {old.node}: give each node a "
                f"partition-id of its own"
            )
        if old:
            old.node, old.samples = answer.node, hello.samples
        else:
            self.roster[hello.client] = Member(answer.node, hello.samples)
        log.info("client %d joined on node %d", hello.client, answer.node)

    def _name(self, client: int) -> str:
        member = self.roster.get(client)
        return f"client {client} (node {member.node})" if member else f"client {client}"


def _reasons(away: Mapping[int, str]) -> str:
    return "; ".join(f"client {client}: {reason}" for client, reason in sorted(away.items()))
