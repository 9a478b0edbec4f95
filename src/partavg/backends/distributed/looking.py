"""Looks at the averaged model, while each rank keeps its own, and averages of other modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from partavg.backends.distributed.evaluating import (
    average_buffers_,
    average_model_,
    average_module_,
    check_outer,
    own_model_kept,
    state_of,
    take_outer_model_,
)
from partavg.backends.distributed.meeting import Meeting
from partavg.backends.distributed.trailer import DEEDS


class Looking(Meeting):
    """What an averager does beside training, which goes on as if nothing had been."""

    _borrowed = False
    """Whether the model is the averaged one now."""

    @contextmanager
    def averaged(self, *, outer: bool = False) -> Iterator[None]:
        """Hold the averaged model u for a while, then again what the rank had, to the bit.

        For evaluation: training goes on as if nothing had been. If `outer`, the parameters are
        those from which the outer steps of a solver like DiLoCo go on. What is local stays the
        rank's own. All ranks must enter after the same step; each keeps a copy of its model.
        """
        row, plan = self._row, self._current.plan
        self._check_own()
        if outer:
            check_outer(self._solver, row)
        with self._sharded(), own_model_kept(row, plan):
            self._borrowed = True
            try:
                with torch.no_grad():
                    self._borrow_(outer=outer)
                yield
            finally:
                self._borrowed = False

    @contextmanager
    def _sharded(self) -> Iterator[None]:
        """The model changes in here: let FSDP keep no whole parameters of before, nor from here."""
        if self._shards:
            self._shards.reshard_()
        try:
            yield
        finally:
            if self._shards:
                self._shards.reshard_()

    def _borrow_(self, *, outer: bool) -> None:
        row, plan = self._row, self._current.plan
        if outer:
            take_outer_model_(row, plan)
            if not any(plan.buffer_parts):
                return
        deed = "asks for the outer model" if outer else "asks for the averaged model"
        with self._asking(deed):
            if self._shards:
                self._average_inside(range(plan.schedule.parts))
            (average_buffers_ if outer else average_model_)(row, plan, self._collective)

    def consensus_state_dict(self, *, cpu: bool = False) -> dict[str, Any]:
        """The model's state dict with the averaged values, on every rank; nothing else changes.

        What is not averaged is as this rank has it. Two copies of the model are needed for a
        moment, one where the result is made on the `cpu`.
        """
        with self.averaged():
            return state_of(self._row.module, cpu=cpu)

    @torch.no_grad()
    def average_(self, module: nn.Module) -> None:
        """Average another module over the ranks, for example an EMA copy of the model.

        Its parameters and float buffers, trained or not, but for those that are local by name.
        """
        self._check_own()
        with self._asking("averages another module"):
            average_module_(module, self._row, self._current.plan, self._collective)

    def _check_own(self) -> None:
        if self._borrowed:
            raise ValueError(
                "the model is the averaged one inside `with averager.averaged():`: train, "
                "average and ask for the consensus outside"
            )

    @contextmanager
    def _asking(self, deed: str) -> Iterator[None]:
        """Meet the others, who must ask for the same, and leave no trace in rounded messages."""
        with (
            self._talking(self._row.step, deed=DEEDS.index(deed)),
            self._collective.aside(self._next_part()),
        ):
            self._meet()
            yield
