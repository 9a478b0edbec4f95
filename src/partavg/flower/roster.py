"""Who the clients are, what each of them has, and who was away when."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

_REMEMBERED = 100  # absences; all are counted


@dataclass(slots=True)
class Member:
    """What the server knows of a client."""

    node: int
    samples: int
    turn: int = -1
    """The last turn that it carried out, as far as the server has heard; -1 if it has nothing."""
    owed: dict[int, bool] = field(default_factory=dict)
    """The parts averaged since it last heard of them; True where the sums are enough, because it
    had the part as it was before and took part in averaging it."""
    behind: bool = False
    """Whether it must begin with a whole model, because it was not active."""
    sent: int = 0
    received: int = 0
    """Bytes to the server and from it."""
    messages: int = 0
    away: list[tuple[int, str]] = field(default_factory=list)
    """The last steps at which it did not take part though it should have, and why."""
    late: int = 0
    """How often the others did not wait for it."""
    absences: int = 0
    """How often it did not."""
    missed: int = 0
    """How many deadlines it missed in a row."""
    key: str = ""
    """Its public key, if it has one."""
    tests: int = 0
    """How many test samples it measures models on."""
    lacks: list[int] = field(default_factory=list)
    """The parts of which it has not heard the last average."""
    scored: dict[str, float] = field(default_factory=dict)
    """What it measured last: `step`, `loss` and `accuracy`."""
    over: bool = False
    """Whether it has heard that the run is over."""
    seen: int = 0
    """The step at which it answered last."""

    def was_away(self, step: int, why: str) -> None:
        """It did not take part at a step."""
        self.absences += 1
        self.away.append((step, why))
        del self.away[:-_REMEMBERED]

    def averaged(self, part: int, *, contributed: bool) -> None:
        """A part was averaged, with or without this client."""
        self.owed[part] = contributed and part not in self.owed
        self.outdated(part)

    def outdated(self, part: int) -> None:
        """What it knows of a part is no longer the last average."""
        if part not in self.lacks:
            self.lacks.append(part)

    def needs_only(self, parts: Collection[int]) -> bool:
        """Whether it lacks nothing but the sums of these parts."""
        return all(part in parts and sums for part, sums in self.owed.items())

    def begins(self, *, whole: bool) -> None:
        """It becomes active: with a whole model, or with its own as it is."""
        self.behind = whole
        self.owed.clear()

    def heard(self, turn: int, parts: Iterable[int], *, averages: bool = True) -> None:
        """It carried out a turn, and so has the parts that came along: averages, or another's."""
        self.turn, self.behind = turn, False
        for part in list(parts):
            self.owed.pop(part, None)
            if averages and part in self.lacks:
                self.lacks.remove(part)


class Roster(dict[int, Member]):
    """The clients by their number."""

    def state(self) -> dict[int, dict[str, Any]]:
        """All of it, to save."""
        return {client: asdict(member) for client, member in self.items()}

    @classmethod
    def load(cls, saved: dict[int, dict[str, Any]]) -> "Roster":
        """Take back what `state` gave."""
        return cls({client: Member(**values) for client, values in saved.items()})
