"""What a local solver is: a few functions on rows."""

import warnings
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from partavg.core.layout import Layout

State = dict[str, Tensor]
"""A solver's memory: tensors [m, d], one row per worker, or [1, d], shared by all workers."""


class Step(NamedTuple):
    """What a worker knows when it takes a local step."""

    lr: float
    taken: Float[Tensor, "m 1"]
    """Local steps of each worker since the start, this one among them."""
    layout: Layout | None = None
    """The tensors that the columns are, where the solver says `whole_tensors`."""


class Sync(NamedTuple):
    """What each worker did with a part since that part was last averaged."""

    steps: Float[Tensor, "m 1"]
    """Local steps."""
    lr_sum: Float[Tensor, "m 1"]
    """Sum of the learning rates of those steps: exact under any schedule.

    For a solver that `estimates_gradients` each rate counts as far as momentum carries it, so that
    the sum is how far a gradient that was always 1 moved the worker."""
    taken: Float[Tensor, "m 1"]
    """Local steps since the start."""
    active_fraction: float = 1.0
    """Of all clients, those that are active."""
    told: Float[Tensor, "s"] | None = None
    """When a message is decoded: the weighted sums of what workers told beside it, see
    `Abilities.tells`."""
    outer_steps: int = 1
    """Outer steps of the part, this one among them, see `Abilities.outer_step`."""

    @property
    def share(self) -> float:
        """The old name of `active_fraction`."""
        warnings.warn(
            "Sync.share is called active_fraction; the old name goes with 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.active_fraction


@runtime_checkable
class Solver(Protocol):
    """A local update rule, and what workers tell each other when a part is averaged.

    Solvers are frozen dataclasses whose fields are the hyper-parameters. All their functions but
    `init` must treat each column by itself, and all but `decode_` each row by itself, because
    they are called on blocks of both: the same code serves m simulated workers, a process with
    some of them, and one client, and a block that fits the processor's cache. The `step_` of one
    that says `whole_tensors` sees whole tensors, and may treat each of them by itself.

    What else it can do, and what it needs, it says in an attribute `abilities`, see `Abilities`.
    """

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """The memory to start with."""
        ...

    def step_(
        self,
        params: Float[Tensor, "m n"],
        grads: Float[Tensor, "m n"],
        state: State,
        now: Step,
    ) -> None:
        """Take one local step: change `params` and `state`; `grads` may be used up."""
        ...

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """What each worker sends of a part."""
        ...

    def decode_(
        self,
        rows: Float[Tensor, "m n"],
        total: Float[Tensor, "l"],
        state: State,
        sync: Sync,
    ) -> None:
        """Take the weighted sum of all workers' messages into `rows` and `state`."""
        ...
