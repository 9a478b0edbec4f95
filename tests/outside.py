"""Things that a user of the package wrote, in one file, without touching it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import partavg
from partavg.data.dataset import Dataset, Samples
from partavg.registry import KINDS, table


@dataclass(frozen=True, slots=True)
class FedDyn:
    """g ← g − h_i + α (x − r), and r ← u − s / α: duals of each client and of all.

    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, Federated Learning Based on Dynamic
    Regularization, 2021.
    """

    alpha: float = 0.1
    base: partavg.Solver = field(default_factory=partavg.SGD)

    @property
    def abilities(self) -> partavg.Abilities:
        base = partavg.abilities(self.base)
        return replace(
            base,
            plain=False,
            per_client=("dual", *base.per_client),
            corrects_gradients=True,
            needs_last_average=True,
            outer_step=True,
            renewed_by_averaging=False,
        )

    def init(self, params: Tensor, layout: partavg.Layout) -> dict[str, Tensor]:
        zeros = torch.zeros_like(params)
        own = {"dual": zeros, "sum": zeros[:1].clone(), "last": params[:1].clone()}
        return {**self.base.init(params, layout), **own}

    def step_(
        self, params: Tensor, grads: Tensor, state: dict[str, Tensor], now: partavg.Step
    ) -> None:
        grads.sub_(state["dual"]).add_(params - state["last"], alpha=self.alpha)
        self.base.step_(params, grads, state, now)

    def encode(self, rows: Tensor, state: dict[str, Tensor], sync: partavg.Sync) -> Tensor:
        return self.base.encode(rows, state, sync)

    def decode_(
        self, rows: Tensor, total: Tensor, state: dict[str, Tensor], sync: partavg.Sync
    ) -> None:
        width, last = rows.shape[1], state["last"]
        state["dual"].sub_(rows - last, alpha=self.alpha)
        state["sum"].sub_(total[:width] - last, alpha=self.alpha * sync.active_fraction)
        target = total.clone()
        target[:width] -= state["sum"][0] / self.alpha
        self.base.decode_(rows, target, state, sync)
        last.copy_(rows[:1])


def plain_sum(messages: Tensor, weights: Tensor, about: partavg.About) -> Tensor:
    """The default, as somebody else would write it."""
    return (weights[:, None] * messages).sum(0)


def median(messages: Tensor, weights: Tensor, about: partavg.About) -> Tensor:
    """The median of each column."""
    return messages.median(0).values


class Noisy:
    """The mean of changes clipped to a norm, and noise: as private averaging does it."""

    def __call__(self, messages: Tensor, weights: Tensor, about: partavg.About) -> Tensor:
        changes = about.parameters(messages) - about.last
        norms = changes.norm(dim=1, keepdim=True)
        mean = weights @ (changes * (0.5 / norms).clamp(max=1))
        generator = torch.Generator().manual_seed(about.seed)
        noise = 0.01 * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        return about.last + mean + noise


def tanh_net(shape: tuple[int, ...], classes: int, *, hidden: int = 6) -> nn.Module:
    """A model with an option."""
    return nn.Sequential(nn.Linear(*shape, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def points(root: Path, *, count: int = 120) -> Dataset:
    """A dataset with an option: three clouds of points."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(count + 30) % 3
    inputs = torch.randn(count + 30, 5, generator=generator) + 2 * torch.eye(5)[targets]
    train, test = slice(0, count), slice(count, None)
    return Dataset(
        Samples(inputs[train], targets[train]), Samples(inputs[test], targets[test]), classes=3
    )


def thirds(layout: partavg.Layout, parts: int, seed: int) -> partavg.Partition:
    """A partition: every third column."""
    spans = [partavg.Span(column, column + 1) for column in range(layout.size)]
    return partavg.Partition(layout.size, tuple(tuple(spans[p::parts]) for p in range(parts)))


LARGEST = partavg.Metric(
    "largest",
    lambda moment: moment.simulation.largest().max(),
    title="Largest parameter",
    summary=("peak",),
    column="largest",
)


class Told:
    """A sink that remembers what it is told."""

    told: ClassVar[list[tuple[str, Any]]] = []

    def begin(self, about: partavg.RunInfo) -> None:
        self.told.append(("begin", about))

    def take(self, row: dict[str, Any]) -> None:
        self.told.append(("take", row))

    def end(self, summary: dict[str, Any] | None) -> None:
        self.told.append(("end", summary))


THINGS: dict[tuple[str, str], Any] = {
    ("solver", "feddyn"): FedDyn,
    ("model", "tanh_net"): tanh_net,
    ("data", "points"): points,
    ("partition", "thirds"): thirds,
    ("metric", "largest"): LARGEST,
    ("sink", "told"): Told,
}


@contextmanager
def names_restored() -> Iterator[None]:
    """Whatever is registered inside is forgotten afterwards."""
    before = {kind: dict(table(kind)) for kind in KINDS}
    try:
        yield
    finally:
        for kind, names in before.items():
            table(kind).clear()
            table(kind).update(names)


@contextmanager
def registered() -> Iterator[None]:
    """Their names are known for a while."""
    with names_restored():
        for (kind, name), thing in THINGS.items():
            partavg.register(kind, name, thing)
        yield
