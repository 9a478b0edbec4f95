"""Where the server is, and what is on its way to the clients."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from partavg.flower.plausible import Changes

Stage = Literal["exchange", "evaluation", "redistribution", "dismissal", "end", "done"]


@dataclass(slots=True)
class ServerProgress:
    """Where the server is, and what is on its way to the clients."""

    token: str
    stage: Stage = "exchange"
    turn: int = 0
    step: int = 0
    about: str = "part"
    part: int = 0
    sums: Tensor | None = None
    """The last average, as sums of messages about a part or the rest, for those who contributed."""
    active_fraction: float = 1.0
    """Of all clients, those that the sums are of."""
    models: dict[int, Tensor] = field(default_factory=dict)
    """From one client to another."""
    ends: int | None = None
    """The step at which it was told to end; else it ends with its budget."""
    changes: Changes = field(default_factory=dict)
    """How far parts moved in their last averages."""
    drawn: list[int] | None = None
    """Of a private run: who takes part in this cycle, where clients are drawn by chance."""
    private: dict[str, Any] = field(default_factory=dict)
    """What the next sums of a private run must know, see `PrivateMean`."""
    spent: bool = False
    """Whether a private run ended because another sum would cost too much."""

    def state(self) -> dict[str, Any]:
        """All of it, to save; files call the active fraction share."""
        saved = {name: getattr(self, name) for name in self.__slots__}
        saved["share"] = saved.pop("active_fraction")
        return saved

    @classmethod
    def load(cls, saved: dict[str, Any]) -> "ServerProgress":
        """Take back what `state` gave."""
        values = dict(saved)
        return cls(active_fraction=values.pop("share"), **values)
