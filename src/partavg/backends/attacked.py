"""The attackers of a simulation: who they are, what they do, and what is seen without them."""

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.attacks.attack import Attack
from partavg.attacks.lying import Attackers, Lying
from partavg.core.aggregate import Aggregate
from partavg.core.inputs import Inputs
from partavg.core.participation import Participation
from partavg.data.samples import Samples


class Attacked:
    """A simulation under attack, or without one."""

    def __init__(
        self,
        attack: Attack | None,
        participation: Participation | None,
        *,
        clients: int,
        seed: int,
        samples: Samples,
    ) -> None:
        self._attack = attack
        self._active = participation.active if participation else clients
        found = attack.attackers(clients, seed) if attack else ()
        self.attackers = Attackers(found, participation)
        self._classes = _classes(samples) if attack and attack.mislabels else 0

    def aggregate(self, given: Aggregate) -> Aggregate:
        """What an aggregate makes of messages when attackers lie."""
        if self._attack and self._attack.lies and self.attackers.clients:
            return Lying(self._attack, self.attackers, given)
        return given

    def targets(self, given: Inputs, step: int, here: slice) -> Inputs:
        """The targets that the workers held here train on."""
        if not (self._attack and self._classes and isinstance(given, Tensor)):
            return given
        rows = torch.tensor(self._rows(step, here), dtype=torch.long, device=given.device)
        wrong = self._attack.mislabel(given[rows], self._classes)
        return given.index_copy(0, rows, wrong.to(given.dtype))

    def honest_rows(self, step: int, here: slice) -> list[int] | None:
        """The rows of those held here that are honest; None where all count, as nobody else is."""
        if not 0 < len(self.attackers.rows(step)) < self._active:
            return None
        liars = set(self._rows(step, here))
        return [row for row in range(len(range(*here.indices(self._active)))) if row not in liars]

    def _rows(self, step: int, here: slice) -> list[int]:
        """The attackers' rows among those held here."""
        first, stop, _ = here.indices(self._active)
        return [row - first for row in self.attackers.rows(step).tolist() if first <= row < stop]

    def honest(self, weights: Float[Tensor, "m"], step: int) -> Float[Tensor, "m"]:
        """p_i of all active workers without the attackers; with them if there is nobody else."""
        if not self.attackers.clients:
            return weights
        liars = self.attackers.rows(step).to(weights.device)
        others = weights.index_fill(0, liars, 0)
        return torch.where(others.sum() > 0, others / others.sum(), weights)


def _classes(samples: Samples) -> int:
    """How many classes there are; a ValueError where targets are none."""
    labels = samples.labels
    if labels is None:
        raise ValueError(
            "the attack mislabels samples, and the targets are not the classes of samples: use "
            "another attack, like sign_flip, or data with a whole number per sample"
        )
    return 1 + int(labels.max())
