"""Asking clients, checking what they answer, and going on without those that fail."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep

from torch import Tensor

from partavg.flower import messages, scores
from partavg.flower.flight import Flight, Taken
from partavg.flower.identity import check_signature
from partavg.flower.messages import Order, Reply
from partavg.flower.orders import Orders
from partavg.flower.protocol import Agreement
from partavg.flower.roster import Roster
from partavg.flower.rules import Rules
from partavg.flower.scores import Scores
from partavg.flower.transport import Answer, Transport
from partavg.flower.welcome import Welcome
from partavg.sentences import cleaned

log = logging.getLogger("flwr")

CARRY_OUT = "train.partavg"
"""What a message asks for, as Flower names it; app.py answers."""
_IDLE, _SHORT = 1.0, 0.02  # seconds of waiting after which something else may be done
_GREETING = 10.0  # seconds that nodes get to introduce themselves, whatever the rules


class TooFewClients(RuntimeError):
    """Fewer clients answer than must; all that was averaged is saved."""


@dataclass(slots=True)
class Round:
    """One round of messages: what came back, and who is missing."""

    replies: dict[int, Reply] = field(default_factory=dict)
    arrays: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, Scores] = field(default_factory=dict)
    away: dict[int, str] = field(default_factory=dict)
    capped: list[int] = field(default_factory=list)
    samples: dict[int, int] = field(default_factory=dict)
    """The new counts of those that have another one now."""
    late: list[int] = field(default_factory=list)
    """Who was not waited for."""
    seconds: float = 0.0


class Rounds:
    """The clients, asked one round after another."""

    def __init__(
        self, transport: Transport, agreement: Agreement, rules: Rules, token: str
    ) -> None:
        self.roster = Roster()
        self._transport, self._agreement, self._rules = transport, agreement, rules
        self._welcome = Welcome(transport, agreement, rules, token)
        self._until: dict[int, float] = {}
        self._late: list[Flight] = []

    def resume(self, roster: Roster, token: str) -> None:
        """Go on with the clients of a job that was started before."""
        self.roster, self._welcome.token = roster, token

    def gather(self) -> None:
        """Wait for all clients; after a while for as many as must be there."""
        rules, began = self._rules, monotonic()
        while True:
            self._welcome.look(self.roster)
            here, waited = len(self._here()), monotonic() - began
            early = waited < max(rules.wait, _GREETING if self._welcome.waits else 0.0)
            if here >= (rules.clients if early else rules.min_clients):
                return
            if not early and waited > rules.patience:
                raise TooFewClients(
                    f"{here} of {rules.clients} clients came within {waited:.0f} s, and "
                    f"flower.min_clients = {rules.min_clients} must: start more SuperNodes"
                )
            sleep(min(0.5, 0.02 + 0.05 * waited))

    def ask(
        self, clients: Sequence[int], orders: Orders, *, need: int, enough: int | None = None
    ) -> Round:
        """Ask clients until as many as `need` gave an answer that holds; name those that did not.

        Where that is said, nobody waits for more than `enough`.
        """
        began, rules, step = monotonic(), self._rules, orders.until
        found = Round()
        while True:
            self._welcome.look(self.roster)
            self._ask_missing(
                found,
                clients,
                orders,
                all_of_them=bool(found.away),
                enough=len(clients) if enough is None else enough,
            )
            if len(found.replies) >= need:
                break
            if monotonic() - began > rules.patience:
                raise TooFewClients(
                    f"{len(found.replies)} of {len(clients)} clients answered at step {step} "
                    f"within {rules.patience:g} s, and {need} must ({_reasons(found.away)}): mend "
                    f"that, then start again with flower.resume = true"
                )
            sleep(min(1.0, rules.patience / 20))
        for client in found.late:
            self.roster[client].late += 1
        for client, reason in sorted(found.away.items()):
            self._was_away(client, step, reason)
        found.seconds = monotonic() - began
        return found

    def leave_out(self, found: Round, client: int, step: int, reason: str) -> None:
        """Do as if a client had not answered, whose answer does not hold after all."""
        for answers in (found.replies, found.arrays, found.scores):
            answers.pop(client, None)
        found.away[client] = reason
        self._was_away(client, step, reason)

    def _was_away(self, client: int, step: int, reason: str) -> None:
        log.warning("%s is left out at step %d: %s", self._name(client), step, reason)
        if client in self.roster:
            self.roster[client].was_away(step, reason)

    def _ask_missing(
        self,
        found: Round,
        clients: Sequence[int],
        orders: Orders,
        *,
        all_of_them: bool,
        enough: int,
    ) -> None:
        """One try; what was answered in an earlier one still counts.

        Who missed deadlines in a row is asked only now and then, unless too few are left. Who is
        still busy with an order of before is asked when it is done with that.
        """
        here, roster = self._here(), self.roster
        missing = [client for client in clients if client not in found.replies]
        rests = {c for c in missing if self._rests(c)} if not all_of_them else set()
        found.away = {client: self._why_not_asked(client, client in rests) for client in missing}
        waiting = {client for client in missing if client in here and client not in rests}
        flying: list[Flight] = []
        while len(found.replies) < enough:
            silent = self._hear_late(found) & waiting
            found.away |= dict.fromkeys(silent, "it is past the deadline of an earlier order")
            free = waiting - silent - self._busy()
            waiting -= silent | free
            flying += [self._send(sorted(free), orders)] if free else []
            on_their_way = [flight for flight in flying if flight.sent.missing]
            if not waiting and not on_their_way:
                break
            patience = _SHORT if waiting or len(on_their_way) > 1 else _IDLE
            taken = [flight.take(patience) for flight in on_their_way]
            for answered in taken:
                if answered:
                    self._take(found, answered)
            if not any(taken):
                self._welcome.look(roster)
                sleep(0 if on_their_way else _SHORT)
        self._wait_no_longer(found, flying, waiting)
        # Sums must not depend on who was quickest.
        found.replies = dict(sorted(found.replies.items()))
        found.arrays = dict(sorted(found.arrays.items()))
        found.scores = dict(sorted(found.scores.items()))

    def _send(self, clients: Sequence[int], orders: Orders) -> Flight:
        """Orders on their way."""
        roster = self.roster
        told = {roster[c].node: (c, *orders.order(c, roster[c])) for c in clients}
        contents = {
            node: messages.write(messages.ORDER, order, handout.array)
            for node, (_, order, handout) in told.items()
        }
        most = {node: self._most(order) for node, (_, order, _) in told.items()}
        deadline = self._rules.deadline
        sent = self._transport.send(contents, CARRY_OUT, orders.turn, deadline, most)
        return Flight(sent, told)

    def _take(self, found: Round, taken: Taken) -> None:
        """Take up an answer, if it holds."""
        client, order, _, answer = taken
        try:
            reply, array = self._heard(found, taken)
            if order.send == "scores" and answer.content:
                known = self._rules.scores, self._rules.max_samples
                found.scores[client] = scores.read(answer.content, *known)
        except ValueError as error:
            found.away[client] = cleaned(str(error))
            return
        del found.away[client]
        found.replies[client] = reply
        if array is not None:
            found.arrays[client] = array

    def _heard(self, found: Round, taken: Taken) -> tuple[Reply, Tensor | None]:
        """An answer that holds, and what its client has now; a ValueError for one that does not."""
        client, order, handout, answer = taken
        member = self.roster[client]
        member.received += answer.sent
        member.sent += answer.received
        self._count_missed(client, answer)
        reply, array = self._checked(answer, client, order)
        member.messages += 1
        member.seen = order.until
        if order.bring != "averages":  # to look at only
            member.heard(order.turn, handout.parts, averages=order.bring != "model")
            member.over = order.last
        self._count_samples(found, client, reply.samples)
        return reply, array

    def _wait_no_longer(self, found: Round, flying: Sequence[Flight], waiting: set[int]) -> None:
        """Enough have answered: the others are late, and are asked again when they are done."""
        self._late += [flight for flight in flying if flight.sent.missing]
        found.late = sorted(waiting.union(*(flight.clients for flight in flying)))
        for client in found.late:
            del found.away[client]

    def _busy(self) -> set[int]:
        """The clients whose answers were not waited for, and have not come yet."""
        return {client for flight in self._late for client in flight.clients}

    def _hear_late(self, found: Round) -> set[int]:
        """Take note of what came too late to count; return who was silent until its deadline."""
        silent = set()
        for flight in self._late:
            while taken := flight.take():
                try:
                    self._heard(found, taken)
                except ValueError as error:
                    log.info("client %d, late: %s", taken.client, cleaned(str(error)))
                    silent |= {taken.client} if taken.answer.silent else set()
        self._late = [flight for flight in self._late if flight.sent.missing]
        return silent

    def _checked(self, answer: Answer, client: int, order: Order) -> tuple[Reply, Tensor | None]:
        """An answer that may touch the model; a ValueError says why another may not."""
        member, model = self.roster[client], self._agreement.model
        if answer.content is None:
            raise ValueError(answer.problem)
        reply = messages.read(answer.content, messages.REPLY, Reply)
        if (reply.turn, reply.client) != (order.turn, client):
            raise ValueError(
                f"it answered for client {reply.client} and turn {reply.turn}, not {client} and "
                f"{order.turn}"
            )
        self._rules.check_key(client, member.key)
        if member.key:
            about = {"node": answer.node, "token": order.token}
            check_signature(answer.content, messages.REPLY, about, member.key)
        if reply.lost:
            member.turn = -1
            raise ValueError("it does not have its state any more, and gets the whole model next")
        self._rules.check_samples(client, reply.samples)
        if math.isinf(reply.loss):
            raise ValueError("its loss is not finite")
        if order.send != "scores":
            messages.check_without_scores(answer.content)
        length = self._agreement.sent_length(order)
        if length == 0:
            messages.check_without_array(answer.content)
            return reply, None
        return reply, messages.unpack(answer.content, length, model.dtype)

    def _most(self, order: Order) -> int:
        """The bytes that an answer may have."""
        length = self._agreement.sent_length(order)
        beside = messages.BESIDE if order.send != "scores" else scores.MOST_BYTES
        return length * self._agreement.model.dtype.itemsize + beside

    def _count_missed(self, client: int, answer: Answer) -> None:
        member = self.roster[client]
        member.missed = member.missed + 1 if answer.silent else 0
        self._until[client] = monotonic() + self._rules.rest_after(member.missed)

    def _count_samples(self, found: Round, client: int, samples: int) -> None:
        """Data may grow: the new count counts from now on."""
        member = self.roster[client]
        if samples != member.samples:
            log.info("client %d counts %d samples, and %d before", client, samples, member.samples)
            member.samples = found.samples[client] = samples

    def _rests(self, client: int) -> bool:
        return self._until.get(client, 0.0) > monotonic()

    def _why_not_asked(self, client: int, rests: bool) -> str:
        if client not in self.roster:
            return "it never joined"
        if rests:
            missed = self.roster[client].missed
            return f"it missed its last {missed} deadlines, and is asked again later"
        return "its node is not connected"

    def _here(self) -> set[int]:
        """The clients whose nodes are connected."""
        listed = set(self._transport.nodes())
        return {client for client, member in self.roster.items() if member.node in listed}

    def _name(self, client: int) -> str:
        member = self.roster.get(client)
        return f"client {client} (node {member.node})" if member else f"client {client}"


def _reasons(away: Mapping[int, str]) -> str:
    return "; ".join(f"client {client}: {reason}" for client, reason in sorted(away.items()))
