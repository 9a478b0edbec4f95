"""What a solver can do and what it needs, as the solver says it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial

from torch import Tensor

from partavg.core.arguments import check_kind
from partavg.core.solver import Solver, Sync

StepWeight = Callable[[Tensor, Tensor], Tensor]
"""(steps [m, p] since each part was averaged, [m, 1] since the start, the last one among them) ->
how far a gradient that was always 1 moves a worker in that step, in learning rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a solver can do and needs, beside its four functions: its attribute `abilities`.

    The defaults are those of a solver that does nothing special. One that wraps a base begins with
    the base's: `replace(abilities(self.base), plain=False, corrects_gradients=True)`.
    """

    plain: bool = False
    """`encode` gives the rows and `decode_` only copies the sum into them: then all of a part is
    averaged at once."""
    per_client: tuple[str, ...] = ()
    """Entries of its memory that belong to the client, not to the model, and stay with it when
    others take its place (see Participation)."""
    centers: tuple[tuple[str, str | None], ...] = ()
    """Entries per worker whose weighted mean over all workers is always another entry, which they
    share; or 0, where it is None."""
    constant: tuple[str, ...] = ()
    """Entries of its memory, shared by all workers, that never change."""
    corrects_gradients: bool = False
    """`step_` changes the gradients before the base uses them."""
    corrects_parameters: bool = False
    """`step_` changes the parameters beside the base's step."""
    estimates_gradients: bool = False
    """It finds mean gradients from how far parameters moved: the steps below it must be SGD's, with
    one learning rate for all parameters."""
    needs_last_average: bool = False
    """Between two averagings of a part a worker must have begun from the first of them."""
    needs_equal_steps: bool = False
    """All workers must take the same steps."""
    whole_tensors: bool = False
    """`step_` must see whole tensors, which `Step.layout` names; else it gets any columns."""
    step_weight: StepWeight | None = None
    """How far momentum carries a step, where there is any; `Sync.lr_sum` counts it for solvers that
    estimate gradients."""
    tells: Callable[[Sync], Tensor] | None = None
    """A few numbers of each worker [m, s] that go along once with a message, whatever its columns;
    their weighted sums come back in `Sync.told`."""
    only_for_unequal_steps: bool = False
    """Where all workers take the same steps it is plain averaging."""
    allows_delay: bool = True
    """Averages may arrive later than they were sent."""
    outer_step: bool = False
    """`decode_` steps away from the average; the solver's `base` would only average."""
    keeps_apart: bool = False
    """Workers differ in a part that was just averaged."""
    renewed_by_averaging: bool = False
    """Once all parts were averaged, it remembers nothing of the time before."""


def abilities(solver: Solver) -> Abilities:
    """What a solver says of itself; the defaults where it says nothing."""
    # A property that fails with an AttributeError must not look like one that is not there.
    otherwise = () if hasattr(type(solver), "abilities") else (None,)
    try:
        said = getattr(solver, "abilities", *otherwise)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"solver {name_of(solver)} cannot say its abilities: {type(error).__name__}: {error}"
        ) from error
    if isinstance(said, Abilities):
        return said
    check_kind("solver", solver, Solver, "one, like partavg.SGD(…)")
    if said is not None:
        raise ValueError(
            f"solver {name_of(solver)} has abilities {said!r}: they must be a partavg.Abilities"
        )
    old = {name: getattr(solver, name) for name in ("plain", "per_client") if hasattr(solver, name)}
    if old:
        warnings.warn(
            f"solver {name_of(solver)} has attributes {', '.join(old)}: from 0.3 on they count "
            f"only in its `abilities`, a partavg.Abilities",
            DeprecationWarning,
            stacklevel=2,
        )
    return Abilities(**old)


def step_weight(solver: Solver) -> StepWeight | None:
    """How far a step carries, where a solver needs to know and it is not just its rate."""
    said = abilities(solver)
    return said.step_weight if said.estimates_gradients else None


def name_of(solver: Solver) -> str:
    """A solver as messages call it."""
    return type(solver).__name__


def described(thing: object) -> str:
    """What must be the same in all processes; what has no fields is named by its class."""
    if is_dataclass(thing):
        return repr(thing)
    if isinstance(thing, partial):
        return f"{described(thing.func)} with {thing.args} and {thing.keywords}"
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def below(solver: Solver) -> Solver | None:
    """The solver that a solver wraps, if it wraps one."""
    base: Solver | None = getattr(solver, "base", None)
    return base


def lowest(solver: Solver) -> Solver:
    """The solver at the bottom, which takes plain local steps: it takes those of local columns."""
    base = below(solver)
    return solver if base is None else lowest(base)
