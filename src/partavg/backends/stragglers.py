"""How fast the ranks are, and which one all others wait for."""

from collections import deque
from collections.abc import Sequence

import numpy as np

_STEPS = 30  # that are looked at together
_OFTEN = 10  # steps between two looks
_FAR = 3.0  # times as slow as the others is worth a warning …
_NOISE = 0.02  # … if it is more seconds than that


class Stragglers:
    """The ranks' own times of the last steps, without waiting; medians, so one pause is none."""

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self._ranks = ranks
        self._window: deque[Sequence[float]] = deque(maxlen=_STEPS)
        self._taken = 0
        self._warned = False
        self.range = ""
        """From the fastest to the slowest rank."""

    def take(self, seconds: Sequence[float]) -> str:
        """Note how long each rank worked on a step; a warning, once, if one is far slower."""
        if len(seconds) < 2:
            return ""
        self._window.append(seconds)
        self._taken += 1
        if self._taken % _OFTEN:
            return ""
        each = np.median(np.array(self._window), 0)
        self.range = f"ranks {_ms(each.min())}–{_ms(each.max())} ms"
        return self._warning(each) if len(self._window) == _STEPS else ""

    def _warning(self, each: np.ndarray) -> str:
        slowest = int(each.argmax())
        others = float(np.median(np.delete(each, slowest)))
        far = each[slowest] > max(_FAR * others, others + _NOISE)
        if self._warned or not far:
            return ""
        self._warned = True
        name = self._ranks[slowest] if self._ranks else slowest
        return (
            f"rank {name} takes {_ms(each[slowest])} ms a step, the others {_ms(others)} ms: "
            f"all wait for it"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
