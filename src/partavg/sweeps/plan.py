"""What a sweep runs: settings on validation samples, then the best of them on the test set."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partavg.comparison import PlannedRun, configured, planned_runs
from partavg.config import Config
from partavg.config_toml import settings
from partavg.folder import RunFolder, write_json
from partavg.recipe import Recipe
from partavg.registry import suggestion
from partavg.sweeps.space import Axis, Point, called, overrides, points

PLAN = "sweep.json"
"""The file that says what the sweep in a folder is."""
SEARCHES = ("listed", "halving", "optuna")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Schemes, what is tried of each, and how the best is tested."""

    recipe: Recipe
    schemes: tuple[str, ...]
    axes: tuple[Axis, ...]
    seeds: int
    out: Path
    validation: float = 0.1
    budget: int | None = None
    """Whole tuning runs of all schemes together, where not all combinations are tried."""
    search: str = "listed"
    sampler: str = "tpe"

    def check(self) -> None:
        """Raise a ValueError for what could not be swept, before anything is run."""
        if self.search not in SEARCHES:
            raise ValueError(f"search {self.search!r} is not known: use {', '.join(SEARCHES)}")
        if not self.axes:
            raise ValueError("there is nothing to tune: give --grid training.lr=0.1,0.2")
        if not 0 < self.validation < 1:
            raise ValueError(
                f"validation {self.validation:g} leaves no samples to choose on, or none to train "
                f"on: use a share like 0.1"
            )
        if self.budget is not None and self.budget < len(self.schemes):
            raise ValueError(
                f"a budget of {self.budget} runs is less than one for each of "
                f"{len(self.schemes)} schemes: use a larger one"
            )
        planned_runs(self.recipe, self.schemes, self.seeds, self.out)  # its checks
        for axis in self.axes:
            for scheme in self.schemes:
                for value in axis.ends or axis.values:
                    self._check_taken(scheme, axis.key, value)
        assert self.trials  # or a sentence why there are none

    def _check_taken(self, scheme: str, key: str, value: Any) -> None:
        """Raise a ValueError for a setting that cannot be, or that a scheme sets itself."""
        made = settings(self.tuning(scheme, ((key, value),)))
        if key.count(".") == 1 and made.get(key) != value:
            raise ValueError(
                f"{key} = {value!r} would be taken by no run of {scheme}, which sets it to "
                f"{made.get(key)!r}: tune other settings, or leave that scheme out"
            )

    @property
    def trials(self) -> int:
        """How many settings of each scheme are tried."""
        most = None if self.budget is None else self.budget // len(self.schemes)
        if self.search == "optuna":
            if most is None:
                raise ValueError("a search by optuna never ends: say by --budget how many runs")
            return most
        return len(self.points)

    @property
    def points(self) -> list[Point]:
        """What is tried of each scheme, where it is known in advance."""
        most = None if self.budget is None else self.budget // len(self.schemes)
        return points(self.axes, most, self.recipe.config().training.seed)

    def tuning(self, scheme: str, point: Point) -> Config:
        """The settings of a run that is judged on validation samples."""
        config = self._config(scheme, point)
        training = replace(config.training, validation=self.validation)
        checkpoints = replace(config.checkpoints, final=False)
        return replace(config, training=training, checkpoints=checkpoints)

    def trial(self, scheme: str, number: int, point: Point) -> PlannedRun:
        """A tuning run."""
        config = self.tuning(scheme, point)
        slug = re.sub(r"[^\w.=-]+", "-", called(point).replace(" = ", "=").replace(", ", "_"))
        folder = RunFolder(self.out / "tune" / scheme / f"{number:02d}-{slug[:60]}")
        return PlannedRun(scheme, config.training.seed, folder, config)

    def tests(self, scheme: str, point: Point) -> list[PlannedRun]:
        """The chosen settings on the test set, with seeds that chose nothing."""
        config = self._config(scheme, point)
        first = config.training.seed + 1
        return [
            PlannedRun(
                scheme,
                seed,
                RunFolder(self.out / "test" / f"{scheme}-seed{seed}"),
                replace(config, training=replace(config.training, seed=seed)),
            )
            for seed in range(first, first + self.seeds)
        ]

    def _config(self, scheme: str, point: Point) -> Config:
        chosen = replace(self.recipe, overrides=(*self.recipe.overrides, *overrides(point)))
        return configured(chosen, scheme)

    def described(self) -> dict[str, Any]:
        """What makes two sweeps the same."""
        return {
            "recipe": self.recipe.name,
            "settings": list(self.recipe.overrides),
            "schemes": list(self.schemes),
            "grid": [str(axis) for axis in self.axes],
            "seeds": self.seeds,
            "validation": self.validation,
            "budget": self.budget,
            "search": self.search,
            "sampler": self.sampler,
        }

    def write(self) -> None:
        """Say in the folder what this sweep is, once."""
        if not (self.out / PLAN).exists():
            write_json(self.out / PLAN, self.described())

    def check_same(self) -> None:
        """Raise a ValueError if the folder holds another sweep than this one."""
        path = self.out / PLAN
        if not path.exists():
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(stored, Mapping)
        except (ValueError, AssertionError):
            raise ValueError(f"{path} is damaged: use another --out") from None
        for key, value in self.described().items():
            if stored.get(key) != value:
                raise ValueError(
                    f"{self.out} holds a sweep with {key} = {stored.get(key)!r}, and not "
                    f"{value!r}: resume it as it was, or use another --out"
                )


AROUND, AROUND_A_LITTLE = (0.25, 0.5, 1, 2, 4), (0.5, 1, 2)


def grid_around(recipe: Recipe, key: str, factors: Sequence[float]) -> str:
    """The grid of a setting's values around that of a recipe."""
    known = settings(recipe.config(next(iter(recipe.schemes), None)))
    if key not in known:
        raise ValueError(f"unknown key {key!r} to tune: {suggestion(key, known)}")
    value = known[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        raise ValueError(
            f"{key} = {value!r} has no values around it: list some with `partavg sweep --grid`"
        )
    return f"{key}={around(value, factors)}"


def around(value: float, factors: Sequence[float]) -> str:
    """Values around a number, as a grid has them.

    >>> around(0.1, (0.5, 1, 2))
    '0.05,0.1,0.2'
    """
    return ",".join(f"{float(f'{value * factor:.6g}')!r}" for factor in factors)
