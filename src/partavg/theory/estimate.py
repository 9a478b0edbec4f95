"""Estimates of the theorems' constants from a model and its data.

They describe one point: the theorems ask for bounds that hold wherever training may go. Take them
at several points of a run before relying on them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partavg.backends.simulate import Augment
from partavg.core.inputs import Inputs, each
from partavg.core.loop import Batch
from partavg.core.partition import Partition
from partavg.core.seeds import fold
from partavg.data.batches import Batches
from partavg.data.samples import Samples, as_seen, widened
from partavg.engines.choose import choose
from partavg.engines.model import Loss, RowModel
from partavg.theory.bounds import Constants
from partavg.theory.curvature import Objective, largest_curvature, product
from partavg.theory.gradients import Sweep, sweep

_SAMPLES = 256  # of a worker, whose loss is differentiated twice

OnProgress = Callable[[str, int, int], None]
"""Called with what is measured, how much of it is done, and how much there is."""


def unseen(what: str, done: int, total: int) -> None:
    """The OnProgress of a caller that does not care."""


class Spread(NamedTuple):
    """Quartiles and the largest of several measurements."""

    low: float
    median: float
    high: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of some numbers.

        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 9.0])
        Spread(low=2.0, median=3.0, high=4.0, largest=9.0)
        """
        return cls(*(float(value) for value in np.quantile(values, (0.25, 0.5, 0.75, 1))))


@dataclass(frozen=True, slots=True)
class Estimates:
    """The constants at one point, with their spread."""

    loss: float
    """F at the point; where losses cannot be negative, F − F_inf is at most this."""
    smoothness: Spread
    """L of the whole model, over workers."""
    part_smoothness: tuple[Spread, ...]
    """L within each part, that is with the other parts held still; over workers."""
    variance: tuple[Spread, ...]
    """σ_j² of one mini-batch, over workers and repeats."""
    dissimilarity: tuple[Spread, ...]
    """κ_j² with β² = 1, that is Σ_i p_i ‖∇_j F_i − ∇_j F‖²; over repeats."""
    local: tuple[float, ...]
    """Σ_i p_i ‖∇_j F_i‖², the mean over repeats."""
    joint: tuple[float, ...]
    """‖∇_j F‖², the mean over repeats."""

    @property
    def amplification(self) -> float:
        """β² with κ² = 0: Σ_i p_i ‖∇F_i‖² / ‖∇F‖² of the whole gradient."""
        joint = sum(self.joint)
        return max(1.0, sum(self.local) / joint) if joint > 0 else math.inf

    def constants(
        self, *, amplification: float = 1.0, coupled: bool = True, floor: float = 0.0
    ) -> Constants:
        """The constants of a bound: the largest L and σ_j² met, κ_j² as β² leaves it.

        At a point, any β² ≥ 1 will do with κ_j² = Σ_i p_i ‖∇_j F_i‖² − β² ‖∇_j F‖². `coupled`
        takes the L of the whole model for every part, as the proofs need unless the parts do not
        influence each other; without it every part has its own. `floor` is F_inf.
        """
        parts = [spread.largest for spread in self.part_smoothness]
        pairs = zip(self.local, self.joint, strict=True)
        return Constants(
            smoothness=tuple([self.smoothness.largest] * len(parts) if coupled else parts),
            variance=tuple(spread.largest for spread in self.variance),
            gap=max(0.0, self.loss - floor),
            dissimilarity=tuple(max(0.0, local - amplification * joint) for local, joint in pairs),
            amplification=amplification,
        )


def estimate(
    model: nn.Module,
    loss: Loss,
    samples: tuple[Inputs, Inputs],
    split: Sequence[Int[Tensor, "_"]],
    *,
    partition: Partition,
    batch: int = 32,
    weights: Float[Tensor, "m"] | None = None,
    transform: Augment | None = None,
    engine: str = "auto",
    repeats: int = 4,
    batches: int = 16,
    roughness_of: int = 4,
    method: str = "auto",
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: OnProgress = unseen,
) -> Estimates:
    """Estimate the constants at the model's parameters; the model itself is not changed.

    `split` holds the indices of each worker's samples, `weights` their p_i (uniform if not given),
    as in `Simulation`. Gradients: `repeats` times `batches` independent mini-batches of every
    worker. Smoothness: power iteration on the loss of up to 256 samples of each of `roughness_of`
    workers, by `method`.
    """
    _check(repeats, batches, roughness_of)
    if partition.local:
        raise ValueError(
            "the partition leaves columns to each worker alone, and the theorems are about one "
            "model of all: leave averaging.local out"
        )
    place = torch.device(device)
    inputs, targets = (each(partial(Tensor.to, device=place), some) for some in samples)
    seen: Callable[..., Inputs] = as_seen(Samples(*samples), transform)
    rows = RowModel(model, loss, place)
    point = rows.start()
    owners = partition.owners().to(place)
    p = torch.full((len(split),), 1 / len(split)) if weights is None else weights
    p = p.to(place, rows.dtype)

    def draw(number: int) -> Batch:
        """Every batch is the first one of another order: they are independent."""
        indices, keys = Batches(split, batch, fold(seed, "theory", number))(1)
        indices, keys = indices.to(place), keys.to(place)
        at = itemgetter(indices)
        return Batch(seen(each(at, inputs), keys), widened(each(at, targets)), keys)

    computing = choose(engine, 0, rows, point, draw(0)).build(rows)
    sweeps: list[Sweep] = []
    for repeat in range(repeats):
        progress("gradients", repeat, repeats)
        some = (draw(1 + repeat * batches + number) for number in range(batches))
        sweeps.append(sweep(computing, point, some, weights=p, owners=owners))
    progress("gradients", repeats, repeats)

    generator = torch.Generator().manual_seed(fold(seed, "curvature"))
    chosen = torch.randperm(len(split), generator=generator)[:roughness_of].tolist()
    curvatures = []
    for done, worker in enumerate(chosen):
        progress("smoothness", done, len(chosen))
        order = torch.randperm(len(split[worker]), generator=generator)[:_SAMPLES]
        own = itemgetter(split[worker].cpu()[order].to(place))
        seen_here, targets_here = seen(each(own, inputs), None), widened(each(own, targets))
        objective = Objective(rows, point[1], seen_here, targets_here)
        start = torch.randn(partition.size, generator=generator).to(point[0])
        curvatures.append(_curvatures(objective, point[0], start, owners, method))
    progress("smoothness", len(chosen), len(chosen))
    return _summary(sweeps, curvatures, len(partition.parts))


def _curvatures(
    objective: Objective, params: Tensor, start: Tensor, owners: Tensor, method: str
) -> list[float]:
    """That of the whole model, then that of each part."""
    multiply = product(objective, params, method)
    masks = [None, *(owners == part for part in range(int(owners.max()) + 1))]
    return [largest_curvature(multiply, start, within=mask) for mask in masks]


def _summary(sweeps: list[Sweep], curvatures: list[list[float]], parts: int) -> Estimates:
    variance = torch.cat([found.variance for found in sweeps])
    local = torch.stack([found.local for found in sweeps])
    joint = torch.stack([found.joint for found in sweeps])
    between = (local - joint).clamp(min=0)
    return Estimates(
        loss=sum(found.loss for found in sweeps) / len(sweeps),
        smoothness=Spread.of([worker[0] for worker in curvatures]),
        part_smoothness=tuple(
            Spread.of([worker[1 + part] for worker in curvatures]) for part in range(parts)
        ),
        variance=tuple(Spread.of(variance[:, part].tolist()) for part in range(parts)),
        dissimilarity=tuple(Spread.of(between[:, part].tolist()) for part in range(parts)),
        local=tuple(local.mean(0).tolist()),
        joint=tuple(joint.mean(0).tolist()),
    )


def _check(repeats: int, batches: int, roughness_of: int) -> None:
    if min(repeats, roughness_of) < 1 or batches < 2:
        raise ValueError(
            f"repeats {repeats}, batches {batches}, roughness_of {roughness_of}: use at least 1 "
            f"repeat of 2 batches, and the smoothness of 1 worker"
        )
