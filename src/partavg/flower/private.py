"""Both halves of a private exchange: what a client says of its change, and what is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from partavg.core.exchange import about
from partavg.core.local_columns import joined
from partavg.core.private import PrivateMean, clip_
from partavg.core.reduce import accumulating
from partavg.core.released import begin_anew_
from partavg.core.workers import Workers
from partavg.flower.protocol import Agreement
from partavg.privacy.ledger import Ledger
from partavg.privacy.secret import secret_clients

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class PrivateClient:
    """A client that clips before it sends, on one row."""

    agreement: Agreement
    mean: PrivateMean

    def note_released_(self, workers: Workers, brought: str, parts: list[int]) -> None:
        """Remember what was brought of parts, or of all: from there changes are measured."""
        if workers.common is None:
            workers.remember_start_()
        common = workers.common
        assert common is not None
        if brought == "whole":
            common.copy_(workers.params[0])
        for part in parts:
            for start, stop in self.agreement.plan.partition.parts[part]:
                common[start:stop] = workers.params[0, start:stop]

    def begin_cycle_(self, workers: Workers, start: int) -> None:
        """Where clients are drawn, begin a cycle with what was released and nothing else."""
        plan = self.agreement.plan
        if plan.participation and start % plan.schedule.interval == 0:
            begin_anew_(workers, plan, self.agreement.solver)

    def message(self, workers: Workers, part: int, until: int, clip: float) -> Tensor:
        """The clipped change of a part; where the clip follows a quantile, a bit of the cycle."""
        plan, mean = self.agreement.plan, self.mean
        clip = clip if mean.quantile else mean.clip
        assert workers.common is not None
        told = about(workers.common, part, until, plan, self.agreement.solver)
        own = joined(workers.params, plan.partition.parts[part])
        change = own.to(told.last) - told.last
        norm = float(clip_(change, clip * mean.shares[part])[0])
        if mean.local:
            change += mean.noise * clip * mean.draw(told, "sum", change)
        said = change[0]
        if mean.quantile:
            said = torch.cat([said, said.new_tensor([self._bit(workers, norm, until, clip)])])
        return said.to(own.dtype)

    def _bit(self, workers: Workers, norm: float, until: int, clip: float) -> float:
        """At the end of a cycle ½ if all of it was within the clip, −½ if not; 0 before."""
        interval, notes = self.agreement.plan.schedule.interval, workers.notes
        cycle, place = divmod(until - 1, interval)
        before = notes["squares"] if notes.get("cycle") == cycle else 0.0
        notes.update(cycle=cycle, squares=before + norm**2)
        if place + 1 < interval:
            return 0.0
        return _HALF if notes["squares"] ** 0.5 <= clip else -_HALF


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """Makes a released part of clients' changes, after it wrote down what that costs."""

    agreement: Agreement
    mean: PrivateMean
    ledger: Ledger

    @property
    def fraction(self) -> float:
        """Of all clients, those that are expected."""
        who = self.agreement.plan.participation
        return who.active / who.clients if who else 1.0

    def drawn(self, clients: int) -> list[int] | None:
        """Who takes part in a cycle, by chance; None if all do."""
        who = self.agreement.plan.participation
        return secret_clients(clients, self.fraction) if who else None

    def allows(self, part: int, until: int) -> bool:
        """Whether the sum of a part may be made."""
        return self.ledger.allows(self._cycle(until), self._cost(part, until))

    def released(
        self,
        messages: Mapping[int, Tensor],
        part: int,
        until: int,
        mirror: Workers,
        notes: dict[str, Any],
    ) -> Tensor:
        """A part as all are to have it: clipped again, summed, with noise that is paid for."""
        mean, plan = self.mean, self.agreement.plan
        self.ledger.charge(self._cycle(until), self._cost(part, until))
        told = about(mirror.params[0], part, until, plan, self.agreement.solver)
        width, kind = len(told.last), accumulating(self.agreement.model.dtype)
        nothing = torch.zeros(0, width + bool(mean.quantile), dtype=kind)
        rows = torch.cat([nothing, *(message[None] for message in messages.values())])
        weights = rows.new_full((len(rows),), 1 / mean.expected)
        changes = rows[:, :width].clone()
        if mean.local:  # each message has its own noise, which must not be clipped away
            clip_(changes, self._longest(part, width))
            total = weights @ changes
        else:
            _, total = mean.noisy_sum(mean.current_clip(notes), changes, weights, told)
        if mean.quantile and self._ends_cycle(until):
            bits = rows[:, width].clamp(-_HALF, _HALF).sum().double()
            notes["clip"] = mean.next_clip(notes, bits, told)
        return (told.last + total).to(self.agreement.model.dtype)

    def _longest(self, part: int, width: int) -> float:
        """How long a message with its noise can be, but for one in 10^13."""
        mean = self.mean
        return mean.clip * (mean.shares[part] + mean.noise * (sqrt(width) + 8))

    def _cost(self, part: int, until: int) -> float:
        return self.mean.cost(part, ends_cycle=self._ends_cycle(until))

    def _ends_cycle(self, until: int) -> bool:
        return until % self.agreement.plan.schedule.interval == 0

    def _cycle(self, until: int) -> int:
        return (until - 1) // self.agreement.plan.schedule.interval
