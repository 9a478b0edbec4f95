"""The server: one exchange per part that is due."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from partavg.backends.flower import wire
from partavg.backends.flower.meeting import Meeting, Round, Rules
from partavg.backends.flower.post import Post
from partavg.backends.flower.roster import Roster
from partavg.backends.flower.terms import Terms, decode_, parameters, snapshot
from partavg.backends.flower.wire import Order
from partavg.core.abilities import abilities

Stage = Literal["exchange", "redistribution", "dismissal", "end", "done"]
Sent = Literal["part", "rest", "model", "nothing"]


class Exchange(NamedTuple):
    """What one round of messages did."""

    stage: Stage
    step: int
    part: int
    clients: tuple[int, ...]
    """Who took part."""
    away: dict[int, str]
    """Who should have, and why they did not."""
    seconds: float
    loss: float | None
    """Weighted mean of the clients' mini-batch losses, where all of them share it."""
    discrepancy: float | None
    """Of the part, just before it was averaged: (1/m) Σ_i ‖u_j − x_ij‖²."""


@dataclass(slots=True)
class Progress:
    """Where the server is, and what is on its way to the clients."""

    token: str
    stage: Stage = "exchange"
    turn: int = 0
    step: int = 0
    about: str = "part"
    part: int = 0
    sums: Tensor | None = None
    """The last average, as sums of messages about a part or the rest, for those who contributed."""
    share: float = 1.0
    models: dict[int, Tensor] = field(default_factory=dict)
    """From one client to another."""


class Server:
    """Averages parts of the clients' models; iterate over it to train.

    It holds one worker that takes no steps: each part as it was last averaged, and what solvers
    have in common. Between two records the caller may evaluate, stop, or save `state`; what was
    averaged must be saved before going on, or a server that is killed could lose it.
    """

    def __init__(self, post: Post, terms: Terms, rules: Rules, *, steps: int, token: str) -> None:
        self._terms, self._rules, self._steps = terms, rules, steps
        self._meeting = Meeting(post, terms, rules)
        self.mirror = terms.begin()
        self.progress = Progress(token, "exchange" if self._stride <= steps else "end")
        self._packed: dict[str, ArrayRecord] = {}

    @property
    def roster(self) -> Roster:
        """The clients."""
        return self._meeting.roster

    def state(self) -> dict[str, Any]:
        """All of it, to save."""
        progress = {name: getattr(self.progress, name) for name in self.progress.__slots__}
        return {"progress": progress, "mirror": self.mirror.state(), "roster": self.roster.state()}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.progress = Progress(**saved["progress"])
        self.mirror.load_(saved["mirror"])
        self._meeting.roster = Roster.load(saved["roster"])

    def __iter__(self) -> Iterator[Exchange]:
        """Train to the end."""
        stages = {
            "exchange": self._exchange,
            "redistribution": self._redistribute,
            "dismissal": self._dismiss,
            "end": self._end,
        }
        if self.progress.stage in stages:
            self._meeting.gather()
        while self.progress.stage in stages:
            yield stages[self.progress.stage]()

    def _exchange(self) -> Exchange:
        """Let the active clients train until a part is due, and average it."""
        now = self.progress
        until = now.step + self._stride
        (due,) = self._terms.plan.schedule(until)
        found = self._round(self._active(until), until, "part", due)
        weights = self._weights(found)
        apart = self._apart(found, weights, due)
        self._average("part", due, found, weights)
        now.step, now.models = until, {}
        who = self._terms.plan.participation
        if until + self._stride > self._steps:
            now.stage = "end"
        elif who and who.changes(until + 1):
            now.stage = "redistribution"
        return _record("exchange", until, due, found, weights, apart)

    def _redistribute(self) -> Exchange:
        """Collect from the clients active so far what those active from now on start from."""
        now, who = self.progress, self._terms.plan.participation
        assert who
        old, new = self._active(now.step), self._active(now.step + 1)
        due = now.part
        if who.redistribution == "none":
            found = self._round(
                [c for c in old if c not in new], now.step, "nothing", due, required=False
            )
        elif who.redistribution == "average":
            rest: Sent = "rest" if self._terms.pieces("rest", due) else "nothing"
            found = self._round(old, now.step, rest, due)
            if rest == "rest":
                self._average("rest", due, found, self._weights(found))
        else:
            found = self._round(old, now.step, "model", due)
            slots = zip(old, new, strict=True)
            now.models = {n: found.arrays[o] for o, n in slots if o in found.arrays}
        for client in set(new) - set(old):
            if client in self.roster:
                self.roster[client].begins(whole=who.redistribution != "none")
        dismissed = now.about == "rest" and abilities(self._terms.solver).per_client
        now.stage = "dismissal" if dismissed else "exchange"
        return _record("redistribution", now.step, due, found)

    def _dismiss(self) -> Exchange:
        """Tell clients that pause the last sums: what they keep for themselves depends on them."""
        now = self.progress
        new = self._active(now.step + 1)
        leaving = [client for client in self._active(now.step) if client not in new]
        found = self._round(leaving, now.step, "nothing", now.part, required=False)
        now.stage = "exchange"
        return _record("dismissal", now.step, now.part, found)

    def _end(self) -> Exchange:
        """Take the steps that are left and average the whole models: u_K."""
        now = self.progress
        found = self._round(self._active(max(1, self._steps)), self._steps, "model", now.part)
        total = _weighted(found, self._weights(found))
        columns = self._terms.model.params.size
        self.mirror.params[0] = total[:columns]
        at = columns
        for start, stop in self._terms.buffer_spans:
            self.mirror.buffers[0, start:stop] = total[at : at + stop - start]
            at += stop - start
        now.step, now.stage = self._steps, "done"
        return _record("end", now.step, now.part, found, self._weights(found))

    def _round(
        self, clients: Sequence[int], until: int, send: Sent, due: int, *, required: bool = True
    ) -> Round:
        """One round of messages: hand out what clients lack, take back what they send."""
        terms, now = self._terms, self.progress
        lengths = {"nothing": 0, "model": terms.model_length}
        length = lengths[send] if send in lengths else terms.length(send, due)
        need = min(self._rules.min_clients, len(clients)) if required else 0
        turn = now.turn + 1
        self._packed.clear()  # of the round before

        def order(client: int) -> tuple[RecordDict, Sequence[int]]:
            bring, parts, array = self._given(client)
            after = self.roster[client].turn if bring == "sums" else -1
            order = Order(
                now.token, turn, after, bring, now.about, now.part, now.share, now.step, until,
                send, due,
            )  # fmt: skip
            return wire.parcel(wire.ORDER, order, array), parts

        found = self._meeting.hold(turn, clients, order, length, step=until, need=need)
        now.turn = turn
        return found

    def _given(self, client: int) -> tuple[str, Sequence[int], ArrayRecord | None]:
        """What a client gets with its next message, and the parts that it has then."""
        now, terms, member = self.progress, self._terms, self.roster[client]
        every = range(len(terms.plan.partition.parts))
        late = self._rules.catch_up == "whole" or now.about == "rest"
        last = [part for part, _ in terms.pieces(now.about, now.part)]
        if client in now.models:
            return "model", every, wire.pack(self._with_common(now.models[client]))
        if member.turn < 0 or member.behind or (late and not member.needs_only(last)):
            return "whole", every, self._pack("whole")
        if not member.owed:
            return "nothing", (), None
        if all(member.owed.get(part) for part in last):
            return "sums", last, self._pack("sums")
        return "part", last, self._pack("part")

    def _pack(self, bring: str) -> ArrayRecord:
        """What goes to several clients is packed once."""
        if bring not in self._packed:
            now = self.progress
            part = now.part if bring == "part" else None
            tensor = now.sums if bring == "sums" else snapshot(self._terms, self.mirror, part)
            assert tensor is not None
            self._packed[bring] = wire.pack(tensor)
        return self._packed[bring]

    def _with_common(self, model: Tensor) -> Tensor:
        """A model, and what solvers have in common."""
        return torch.cat([model, snapshot(self._terms, self.mirror)[len(model) :]])

    def _average(self, about: str, part: int, found: Round, weights: Mapping[int, float]) -> None:
        now, pieces = self.progress, self._terms.pieces(about, part)
        now.about, now.part, now.sums = about, part, _weighted(found, weights)
        now.share = len(found.replies) / self._rules.clients
        decode_(self._terms, self.mirror, pieces, now.sums, now.share)
        for client, member in self.roster.items():
            for averaged, _ in pieces:
                member.averaged(averaged, contributed=client in found.arrays)

    def _weights(self, found: Round) -> dict[int, float]:
        """p_i of those who answered."""
        by_samples = self._rules.weights == "samples"
        counts = {c: reply.samples if by_samples else 1 for c, reply in found.replies.items()}
        return {client: count / sum(counts.values()) for client, count in counts.items()}

    def _apart(self, found: Round, weights: Mapping[int, float], due: int) -> float | None:
        """How far the clients are apart in a part, as far as messages tell."""
        if not self._terms.sends_parameters:
            return None
        (piece,) = self._terms.pieces("part", due)
        rows = {c: parameters(self._terms, piece, array) for c, array in found.arrays.items()}
        center = sum((weights[c] * row for c, row in rows.items()), torch.zeros(()))
        squares = [float((row - center).square().sum()) for row in rows.values()]
        return sum(squares) / len(squares)

    def _active(self, step: int) -> list[int]:
        who = self._terms.plan.participation
        return [int(c) for c in who(step)] if who else list(range(self._rules.clients))

    @property
    def _stride(self) -> int:
        schedule = self._terms.plan.schedule
        return schedule.interval // schedule.parts


def _weighted(found: Round, weights: Mapping[int, float]) -> Tensor:
    """Σ p_i m_i, always added in the order of the clients."""
    arrays = found.arrays
    total = torch.zeros_like(next(iter(arrays.values())))
    for client, array in arrays.items():
        total.add_(array, alpha=weights[client])
    return total


def _record(
    stage: Stage,
    step: int,
    part: int,
    found: Round,
    weights: Mapping[int, float] | None = None,
    apart: float | None = None,
) -> Exchange:
    losses = {c: reply.loss for c, reply in found.replies.items()}
    shared = weights and all(loss == loss for loss in losses.values())
    loss = sum(weights[c] * loss for c, loss in losses.items()) if weights and shared else None
    return Exchange(stage, step, part, tuple(found.replies), found.away, found.seconds, loss, apart)
