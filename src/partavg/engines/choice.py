"""An engine by name, with all that it takes to build it."""

from typing import Literal, NamedTuple

from partavg.core.loop import Engine
from partavg.core.seeds import OTHERS
from partavg.engines.fused import Fused
from partavg.engines.fused.precision import Precision
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.threads import Threaded
from partavg.engines.vmapped import Vmapped

EngineName = Literal["auto", "looped", "threads", "vmapped", "fused"]


class Choice(NamedTuple):
    """An engine, and why it was taken."""

    name: EngineName
    chunk: int
    reason: str
    precision: Precision = "auto"
    """In which the fused engine computes."""
    deterministic: bool = False
    recompute: bool = False
    """Whether it keeps but few activations, and computes the others twice."""
    draws: tuple[str, ...] = ()
    """The generators that the model draws from by itself."""

    def build(self, model: RowModel) -> Engine:
        """The engine itself."""
        if self.name == "fused":
            return Fused(
                model,
                self.chunk,
                self.precision,
                deterministic=self.deterministic,
                recompute=self.recompute,
            )
        if self.name == "looped":
            return Looped(model, [name for name in self.draws if name in OTHERS])
        if self.name == "threads":
            return Threaded(model, self.chunk)
        return Vmapped(model, self.chunk)
