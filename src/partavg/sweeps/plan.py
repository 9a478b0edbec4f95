"""What a sweep runs: settings on validation samples, then the best of them on the test set."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from partavg.comparison import StartedRun, check_scheme_name
from partavg.folder import RunFolder, write_json
from partavg.sweeps.claim import claim
from partavg.sweeps.space import Axis, Point, called, points

PLAN = "sweep.json"
"""The file that says what the sweep in a folder is."""
SEARCHES = ("listed", "halving", "optuna")
_MOST_SEEDS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Schemes, what is tried of each, and how the best is tested; what is trained others know."""

    name: str
    schemes: tuple[str, ...]
    axes: tuple[Axis, ...]
    seeds: int
    """Fresh ones of each test."""
    out: Path
    tune_seeds: int = 1
    """Seeds by whose mean settings are chosen."""
    first: int = 0
    """The first of those; the test's come after them."""
    budget: int | None = None
    """Whole tuning runs of all schemes together, where not all combinations are tried."""
    search: str = "listed"
    sampler: str = "tpe"
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else makes two sweeps the same."""

    def check(self) -> None:
        """Raise a ValueError for what could not be swept, before anything is run."""
        if self.search not in SEARCHES:
            raise ValueError(f"search {self.search!r} is not known: use {', '.join(SEARCHES)}")
        if not self.axes:
            raise ValueError("there is nothing to tune: give --grid training.lr=0.1,0.2")
        for what, count in (("seeds", self.seeds), ("tune-seeds", self.tune_seeds)):
            if not 1 <= count <= _MOST_SEEDS:
                raise ValueError(f"{count} {what} give no sweep: use 1 to {_MOST_SEEDS}")
        least = len(self.schemes) * self.tune_seeds
        if self.budget is not None and self.budget < least:
            raise ValueError(
                f"a budget of {self.budget} runs is less than one for each of "
                f"{len(self.schemes)} schemes{' and seed to tune by' * (self.tune_seeds > 1)}: "
                f"use {least} or more"
            )
        assert self.trials  # or a sentence why there are none

    @property
    def most(self) -> int | None:
        """How many settings of each scheme the budget has runs for."""
        return self.budget and self.budget // (len(self.schemes) * self.tune_seeds)

    @property
    def trials(self) -> int:
        """How many settings of each scheme are tried."""
        if self.search != "optuna":
            return len(self.points)
        if self.most is None:
            raise ValueError("a search by optuna never ends: say by --budget how many runs")
        return self.most

    @property
    def points(self) -> list[Point]:
        """What is tried of each scheme, where it is known in advance."""
        return points(self.axes, self.most, self.first)

    def trial(self, scheme: str, number: int, point: Point) -> tuple[StartedRun, ...]:
        """The tuning runs of some settings, one for each seed."""
        slug = re.sub(r"[^\w.=-]+", "-", called(point).replace(" = ", "=").replace(", ", "_"))
        name = f"{number:02d}-{slug[:60]}"
        seeds = range(self.first, self.first + self.tune_seeds)
        several = len(seeds) > 1
        folder = self.out / "tune" / scheme
        return tuple(
            StartedRun(scheme, k, RunFolder(folder / (f"{name}-seed{k}" if several else name)))
            for k in seeds
        )

    def tests(self, scheme: str) -> list[StartedRun]:
        """The runs on the test set, with seeds that chose nothing."""
        first = self.first + self.tune_seeds
        return [
            StartedRun(scheme, seed, RunFolder(self.out / "test" / f"{scheme}-seed{seed}"))
            for seed in range(first, first + self.seeds)
        ]

    def described(self) -> dict[str, Any]:
        """What makes two sweeps the same."""
        return {
            "schemes": list(self.schemes),
            "grid": [str(axis) for axis in self.axes],
            "seeds": self.seeds,
            "tune_seeds": self.tune_seeds,
            "budget": self.budget,
            "search": self.search,
            "sampler": self.sampler,
            **self.about,
        }

    @property
    def path(self) -> Path:
        """The file that says what is swept in the folder."""
        return self.out / PLAN

    @property
    def begun(self) -> bool:
        """Whether a sweep was begun in the folder."""
        return self.path.exists()

    def write(self) -> None:
        """Say in the folder what this sweep is, once: of processes that begin together one does."""
        own = {"study": uuid4().hex[:8]} if self.search == "optuna" else {}
        while not self.begun:
            with claim(self.path, self.out / "locks") as ours:
                if ours and not self.begun:
                    write_json(self.path, {**self.described(), **own})

    def stored(self) -> Mapping[str, Any]:
        """What the folder says of the sweep in it; a ValueError if that is none of ours."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            for scheme in stored["schemes"]:
                check_scheme_name(scheme)
            assert {"grid", "seeds", "search"} <= stored.keys()
        except (AssertionError, LookupError, TypeError, ValueError):
            raise ValueError(
                f"{self.path} is damaged, or is no sweep of partavg: use another --out"
            ) from None
        known: Mapping[str, Any] = stored
        return known

    def check_same(self) -> None:
        """Raise a ValueError if the folder holds another sweep than this one."""
        if not self.begun:
            return
        stored = self.stored()
        for key, value in self.described().items():
            if stored.get(key, 1 if key == "tune_seeds" else None) != value:
                raise ValueError(
                    f"{self.out} holds a sweep with {key} = {stored.get(key)!r}, and not "
                    f"{value!r}: resume it as it was, or use another --out"
                )
