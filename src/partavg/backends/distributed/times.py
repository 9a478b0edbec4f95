"""The times of all ranks, as far as one of them knows."""

from collections.abc import Sequence

import torch

from partavg.backends.distributed.collectives import Collective
from partavg.backends.distributed.stopwatch import Stopwatch


class Times:
    """One stopwatch for all that a rank sends, and what others say of themselves."""

    def __init__(self, device: torch.device, collectives: Sequence[Collective]) -> None:
        self._watch = Stopwatch(device)
        self._trailers = collectives[0].trailers
        for collective in collectives:
            collective.stopwatch = self._watch
            for trailer in collective.trailers if self._watch.late else ():
                trailer.clock = lambda: self._watch.last_compute

    def seconds(self) -> dict[str, float]:
        """Own seconds, and those of each rank."""
        own = {name: getattr(self._watch, name) for name in ("compute", "waiting", "exchange")}
        found = {f"seconds/{name}": value for name, value in own.items()}
        for trailer in self._trailers:
            for rank, worked in trailer.worked.items():
                found[f"rank{rank}/compute"] = worked
                found[f"rank{rank}/waiting"] = trailer.waited[rank]
        return found
