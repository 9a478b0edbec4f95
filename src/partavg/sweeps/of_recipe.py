"""Sweeps of recipes: what the settings that are tried make of a recipe."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partavg.comparison import configured, planned_runs
from partavg.config import Config
from partavg.config_toml import settings
from partavg.recipe import Recipe
from partavg.registry import suggestion
from partavg.sweeps.plan import Sweep
from partavg.sweeps.runner import Task
from partavg.sweeps.space import Axis, Point, overrides


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeSweep(Sweep):
    """A sweep whose settings are those of a recipe."""

    recipe: Recipe
    validation: float = 0.1
    """The share of the training samples that is held out to choose on."""

    def check(self) -> None:
        """Raise a ValueError for what could not be swept, before anything is run."""
        super(RecipeSweep, self).check()
        if not 0 < self.validation < 1:
            raise ValueError(
                f"validation {self.validation:g} leaves no samples to choose on, or none to train "
                f"on: use a share like 0.1"
            )
        planned_runs(self.recipe, self.schemes, self.seeds, self.out)  # its checks
        for axis in self.axes:
            if "." not in axis.key:
                raise _unknown(axis.key, _known(self.recipe))
            for scheme in self.schemes:
                for value in axis.ends or axis.values:
                    self._check_taken(scheme, axis.key, value)

    def _check_taken(self, scheme: str, key: str, value: Any) -> None:
        """Raise a ValueError for a setting that cannot be, or that a scheme sets itself."""
        point: Point = ((key, value),)
        wanted = settings(self._with(point).config(scheme)).get(key)
        made = settings(self.tuning(scheme, point)).get(key)
        if made != wanted:
            raise ValueError(
                f"{key} = {value!r} would be taken by no run of {scheme}, which sets it to "
                f"{made!r}: tune other settings, or leave that scheme out"
            )

    def _with(self, point: Point) -> Recipe:
        """The recipe with some settings."""
        return replace(self.recipe, overrides=(*self.recipe.overrides, *overrides(point)))

    def tuning(self, scheme: str, point: Point, seed: int | None = None) -> Config:
        """The settings of a run that is judged on validation samples."""
        config = self.testing(scheme, point, seed)
        training = replace(config.training, validation=self.validation)
        checkpoints = replace(config.checkpoints, final=False)
        return replace(config, training=training, checkpoints=checkpoints)

    def testing(self, scheme: str, point: Point, seed: int | None = None) -> Config:
        """The same on the test set, trained on all samples, whatever the recipe holds out."""
        config = configured(self._with(point), scheme)
        given = config.training.seed if seed is None else seed
        return replace(config, training=replace(config.training, seed=given, validation=0.0))

    def config(self, task: Task) -> Config:
        """The settings of a task."""
        made = self.testing if task.tests else self.tuning
        return made(task.entry.scheme, task.point, task.entry.seed)

    def described(self) -> dict[str, Any]:
        """What makes two sweeps the same."""
        return {
            "recipe": self.recipe.name,
            "settings": list(self.recipe.overrides),
            **super(RecipeSweep, self).described(),
            "validation": self.validation,
        }


AROUND, AROUND_A_LITTLE = (0.25, 0.5, 1, 2, 4), (0.5, 1, 2)
_SHARES = ("dropout", "smoothing")  # of names of settings that leave nothing to learn at 1


def axis_around(
    recipe: Recipe, key: str, factors: Sequence[float], check: Callable[[Point], None]
) -> Axis:
    """Values of a setting around that of a recipe, all of which pass a `check`.

    These are multiples of it; where one of them is refused, or leaves nothing to learn, shares
    between 0 and 1.
    """
    known = _known(recipe)
    if key not in known:
        raise _unknown(key, known)
    value = known[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        raise ValueError(
            f"{key} = {value!r} has no values around it: list some with `partavg sweep --grid`"
        )
    multiples = Axis.parse(f"{key}={around(value, factors)}")
    check(((key, value),))  # or the recipe is to blame, and not what is made of it
    refused = _refused(multiples, check)
    if not refused:
        return multiples
    if isinstance(value, float) and 0 < value < 1:
        shares = Axis.parse(f"{key}={around_share(value, factors)}")
        if not _refused(shares, check):
            return shares
    wrong, why = next(iter(refused.items()))
    left = ",".join(repr(value) for value in multiples.values if value not in refused)
    raise ValueError(
        f"{key} = {value!r} cannot be tuned around itself: of {_listed(multiples.values)}, which "
        f"would be tried, {wrong!r} is refused ({why}); list values of your own with "
        f"`partavg sweep --grid {key}={left}`"
    )


def _known(recipe: Recipe) -> dict[str, Any]:
    return settings(recipe.config(next(iter(recipe.schemes), None)))


def _unknown(key: str, known: dict[str, Any]) -> ValueError:
    alike = [f"did you mean {name!r}?" for name in known if name.endswith(f".{key}")]
    return ValueError(f"unknown key {key!r} to tune: {(alike or [suggestion(key, known)])[0]}")


def _refused(axis: Axis, check: Callable[[Point], None]) -> dict[Any, ValueError]:
    """The values that do not pass a check, and why."""
    found = {}
    for value in axis.values:
        try:
            if axis.key.endswith(_SHARES) and value >= 1:
                raise ValueError(f"a {axis.key} of {value!r} leaves nothing to learn")
            check(((axis.key, value),))
        except ValueError as error:
            found[value] = error
    return found


def _listed(values: Sequence[Any]) -> str:
    *most, last = map(repr, values)
    return f"{', '.join(most)} and {last}"


def around(value: float, factors: Sequence[float]) -> str:
    """Values around a number, as a grid has them; around a whole one those that are whole.

    >>> around(0.1, (0.5, 1, 2)), around(3, (0.5, 1, 2))
    ('0.05,0.1,0.2', '2,3,6')
    """
    if isinstance(value, int):
        return ",".join(map(str, sorted({math.ceil(value * factor) for factor in factors})))
    return _decimals(value * factor for factor in factors)


def around_share(value: float, factors: Sequence[float]) -> str:
    """The same between 0 and 1, of which the nearer one counts.

    >>> around_share(0.9, (0.5, 1, 2)), around_share(0.1, (0.5, 1, 2))
    ('0.8,0.9,0.95', '0.05,0.1,0.2')
    """
    pairs = [(value * factor, 1 - (1 - value) / factor) for factor in factors]
    return _decimals(max(p) if f < 1 else min(p) for f, p in zip(factors, pairs, strict=True))


def _decimals(values: Iterable[float]) -> str:
    return ",".join(f"{float(f'{value:.6g}')!r}" for value in values)
