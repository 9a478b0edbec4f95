"""FedProx: local training that is pulled back to where it began.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, Federated Optimization in Heterogeneous Networks, 2020.
"""

from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities, abilities
from partavg.core.layout import Layout
from partavg.core.solver import Solver, State, Step, Sync
from partavg.sentences import real_number
from partavg.solvers.drift import ANCHOR, anchored
from partavg.solvers.sgd import SGD


@dataclass(frozen=True, slots=True)
class FedProx:
    """g ← g + μ (x − r), r being each part's value at its last averaging; then the base's step.

    >>> FedProx(mu=0.1, base=SGD(momentum=0.9)).mu
    0.1
    """

    mu: float = 0.01
    base: Solver = field(default_factory=SGD)

    def __post_init__(self) -> None:
        real_number(self.mu, "mu")
        if self.mu < 0:
            raise ValueError(f"mu {self.mu} pushes workers apart: use 0 or more")

    @property
    def abilities(self) -> Abilities:
        """The base's; gradients change, and r is new with every averaging."""
        return replace(abilities(self.base), plain=False, corrects_gradients=True)

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """The base's memory, and r."""
        return {**self.base.init(params, layout), **anchored(params)}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """One step on the loss plus μ/2 ‖x − r‖²."""
        if self.mu:
            grads.add_(params - state[ANCHOR], alpha=self.mu)
        self.base.step_(params, grads, state, now)

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """What the base sends."""
        return self.base.encode(rows, state, sync)

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """As the base does; r is where the workers are then."""
        self.base.decode_(rows, total, state, sync)
        state[ANCHOR].copy_(rows[:1])
