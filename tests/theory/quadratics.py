"""Many random problems at once, with every constant of the theorems known.

In a basis Q, worker i has the gradient Q λ_i ∘ h(Qᵀx − c_i) + N ξ in x, with λ_i > 0 and ξ standard
normal: h(y) = y is a quadratic; h(y) = y/√(1 + y²) bends it, so that u depends on the discrepancy
also where all workers are alike. The columns of all problems, and of several runs of each with
other noise, lie side by side in the rows of one training loop; those of a part lie together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from partavg.core.cuts import contiguous
from partavg.core.layout import Layout
from partavg.core.loop import Batch, Gradients, Plan, train
from partavg.core.partition import Partition, Span
from partavg.core.schedule import Schedule
from partavg.core.workers import Workers
from partavg.solvers.sgd import SGD
from partavg.theory import Constants

SIZE = 8
COORDINATES = Layout(("x",), ((SIZE,),))


@dataclass(frozen=True, slots=True)
class Quadratics:
    basis: Tensor  # Q [n, d, d]
    curvature: Tensor  # λ_i [n, m, d]
    center: Tensor  # c_i [n, m, d]
    noise: Tensor  # N [n, d, d]
    weights: Tensor  # p_i [m]
    start: Tensor  # u_1 [n, d]
    parts: int
    """Of the theorems; those that are averaged may be others."""
    separable: bool
    """Whether the basis mixes only coordinates of one part."""
    bent: bool

    def constants(self, problem: int) -> Constants:
        """The smallest constants that hold everywhere; one L and one κ² for all where parts mix."""
        owners = contiguous(COORDINATES, self.parts).owners()
        curvature, center, p = self.curvature[problem], self.center[problem], self.weights
        mean, target = p @ curvature, p @ (curvature * center) / (p @ curvature)
        away = self.basis[problem].T @ self.start[problem] - target
        energy = (1 + away**2).sqrt() - 1 if self.bent else away**2 / 2
        # E(λ(y − c))² − β² (E λ(y − c))² is largest, and is then κ², where its slope in y is 0.
        ratio = float((p @ curvature**2 / mean**2).max())
        beta = 1.2 * ratio if ratio > 1 + 1e-9 else 1.0
        pull = curvature * center
        excess = p @ pull**2 - beta * (p @ pull) ** 2
        if beta > 1:
            slope = p @ (curvature * pull) - beta * mean * (p @ pull)
            excess = excess + slope**2 / (beta * mean**2 - p @ curvature**2)
        excess = excess.clamp(min=0)
        largest = curvature.max(0).values
        variance = self.noise[problem].square().sum(1)
        split = [owners == part for part in range(self.parts)]
        if self.separable:
            smoothness = [float(largest[part].max()) for part in split]
            dissimilarity = [float(excess[part].sum()) for part in split]
        else:
            smoothness = [float(largest.max())] * self.parts
            dissimilarity = [float(excess.sum()) / self.parts] * self.parts
        return Constants(
            tuple(smoothness),
            tuple(float(variance[part].sum()) for part in split),
            float(mean @ energy),
            tuple(dissimilarity),
            beta,
        )

    def gradients(self, x: Tensor) -> Tensor:
        """∇F_i in x, both [m, d, problems, runs]."""
        y = torch.einsum("nij,minr->mjnr", self.basis, x)
        away = y - self.center.permute(1, 2, 0)[..., None]
        if self.bent:
            away = away / (1 + away**2).sqrt()
        slopes = self.curvature.permute(1, 2, 0)[..., None] * away
        return torch.einsum("nij,mjnr->minr", self.basis, slopes)

    def measure(self, schedule: Schedule, rates: Tensor, steps: int, runs: int) -> Tensor:
        """The mean of ‖∇F(u_k)‖² over k = 1 … K and over runs, for each problem."""
        shape = len(self.weights), SIZE, len(rates), runs
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros(len(rates), dtype=torch.float64)

        def engine(params: Tensor, buffers: Tensor, batch: Batch) -> Iterator[Gradients]:
            x = params.view(shape)
            u = torch.einsum("m,minr->inr", self.weights, x).expand(shape)
            at_u = torch.einsum("m,minr->inr", self.weights, self.gradients(u))
            total.add_(at_u.square().sum(0).mean(-1))
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            grads = self.gradients(x) + torch.einsum("nij,mjnr->minr", self.noise, drawn)
            grads = (grads * rates[:, None]).reshape(len(x), -1)  # each problem has its own
            yield Gradients(slice(0, len(x)), params[:, 0], [(slice(0, None), grads)])

        first = self.start.T[..., None].expand(shape[1:]).reshape(1, -1).repeat(shape[0], 1)
        workers = Workers.start(
            first, first.new_empty(shape[0], 0), COORDINATES, SGD(), schedule.parts
        )
        nothing = Batch(*[torch.zeros(shape[0], 1)] * 2, torch.zeros(shape[0], dtype=torch.long))
        for _ in train(
            workers,
            engine,
            lambda step: nothing,
            plan=self._plan(schedule, len(rates) * runs),
            solver=SGD(),
            lr=lambda step: 1.0,
            until=steps,
        ):
            pass
        return total / steps

    def _plan(self, schedule: Schedule, width: int) -> Plan:
        spans = [part[0] for part in contiguous(COORDINATES, schedule.parts).parts]
        wide = tuple((Span(start * width, stop * width),) for start, stop in spans)
        return Plan(schedule, Partition(SIZE * width, wide), ((),) * len(wide), self.weights)


def draw(
    problems: int,
    workers: int,
    parts: int,
    seed: int,
    *,
    separable: bool = True,
    alike: bool = True,
    bent: bool = False,
) -> Quadratics:
    """Random problems; `alike` workers have the same data and weights."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    owners = contiguous(COORDINATES, parts).owners()
    together = (owners[:, None] == owners) if separable else torch.ones(SIZE, SIZE)
    shape = problems, 1 if alike else workers, SIZE
    weights = torch.ones(workers).double() if alike else between(0.2, 1.2, workers)
    return Quadratics(
        basis=torch.linalg.qr(normal(problems, SIZE, SIZE) * together).Q,
        curvature=(10 ** between(-1, 1, problems, 1, SIZE) * between(0.3, 1, *shape)).expand(
            -1, workers, -1
        ),
        center=3 * normal(*shape).expand(-1, workers, -1),
        noise=normal(problems, SIZE, SIZE) * 10 ** between(-1, 1, problems, 1, 1),
        weights=weights / weights.sum(),
        start=3 * normal(problems, SIZE),
        parts=parts,
        separable=separable,
        bent=bent,
    )
