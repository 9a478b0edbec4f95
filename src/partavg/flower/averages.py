"""A client's copy of each part as it was last averaged, which its own training leaves alone."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from partavg.core.partition import Span
from partavg.core.workers import Workers
from partavg.flower.protocol import Agreement


@dataclass(frozen=True, slots=True)
class Averages:
    """Each part as it was last averaged: what a client evaluates, with what is its own.

    It costs a second row, and spares a client a whole model at each evaluation.
    """

    params: Tensor
    buffers: Tensor

    @classmethod
    def of(cls, workers: Workers) -> "Averages":
        """Those of a worker that has all parts as they were last averaged."""
        return cls(workers.params[0].clone(), workers.buffers[0].clone())

    @classmethod
    def brought(cls, workers: Workers, agreement: Agreement, flat: Tensor) -> "Averages":
        """Those that came along, as `whole_model` orders them."""
        made = cls.of(workers)
        for row, spans in made._rows(agreement):
            for start, stop in spans:
                own, flat = flat[: stop - start], flat[stop - start :]
                row[start:stop] = own
        return made

    def take_(self, workers: Workers, spans: Iterable[Span], buffer_spans: Iterable[Span]) -> None:
        """Some columns were averaged just now, and a worker has them."""
        for start, stop in spans:
            self.params[start:stop] = workers.params[0, start:stop]
        for start, stop in buffer_spans:
            self.buffers[start:stop] = workers.buffers[0, start:stop]

    def module(self, workers: Workers, agreement: Agreement) -> nn.Module:
        """A model of what is averaged, and of all else as a worker has it."""
        made = Averages.of(workers)
        for (row, spans), (own, _) in zip(
            made._rows(agreement), self._rows(agreement), strict=True
        ):
            for start, stop in spans:
                row[start:stop] = own[start:stop]
        return agreement.model.module(made.params, made.buffers)

    def _rows(self, agreement: Agreement) -> list[tuple[Tensor, tuple[Span, ...]]]:
        return [(self.params, agreement.param_spans), (self.buffers, agreement.buffer_spans)]
