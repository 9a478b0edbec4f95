"""All workers in one process: the simulator."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partavg.core import average
from partavg.core.loop import Batch, Plan, Record, Workers, train
from partavg.core.partition import PARTITIONS, Partition, Span, follow
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.data.batches import Batches
from partavg.data.dataset import Samples
from partavg.engines.choose import choose
from partavg.engines.model import Loss, RowModel
from partavg.evaluate import Evaluation, evaluate, recompute_statistics_
from partavg.solvers.sgd import SGD

Buffers = Literal["part", "every", "local", "recompute"]
Weights = Literal["uniform", "samples"]


class Discrepancy(NamedTuple):
    """How far the workers are from their mean u: (1/m) Σ_i ‖u − x_i‖²."""

    total: float
    per_part: list[float]


class Simulation:
    """Workers that train copies of one model, each on its own samples.

    `split` holds the indices of each worker's samples. `lr` is a number or a function of the
    step. `weights` are "uniform" or by "samples" owned. `buffers` says what becomes of
    BatchNorm's statistics: averaged with their "part", at "every" averaging, kept "local", or
    local and "recompute"d from training samples for evaluation.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        samples: tuple[Tensor, Tensor],
        split: Sequence[Int[Tensor, "_"]],
        *,
        schedule: Schedule,
        lr: float | Callable[[int], float],
        batch: int = 32,
        solver: Solver | None = None,
        partition: str | Partition = "channel",
        weights: Weights = "uniform",
        buffers: Buffers = "part",
        engine: str = "auto",
        chunk: int = 0,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self._device = torch.device(device)
        self._samples = Samples(*(tensor.to(self._device) for tensor in samples))
        self._batches = Batches(split, batch, seed)
        self._model = RowModel(model, loss, self._device)
        self._solver = solver or SGD()
        self._lr = lr if callable(lr) else lambda step: lr
        self._loss = loss
        self._recompute = buffers == "recompute"

        if isinstance(partition, str):
            partition = _maker(partition)(self._model.params, schedule.parts, seed)
        self.partition = partition
        self._owners = partition.owners().to(self._device)
        self._plan = Plan(
            schedule,
            partition,
            _buffer_parts(buffers, partition, self._model),
            _weights(weights, split).to(self._device, self._model.dtype),
        )
        start = self._model.start()
        self.engine = choose(engine, chunk, self._model, start, self._batch(1))
        self._engine = self.engine.build(self._model)
        params, statistics = (row.expand(len(split), -1).clone() for row in start)
        self.workers = Workers.start(
            params, statistics, self._model.params, self._solver, schedule.parts
        )

    def train(self, until: int) -> Iterator[Record]:
        """Train up to step `until`; yield a record after each iteration."""
        return train(
            self.workers,
            self._engine,
            self._batch,
            plan=self._plan,
            solver=self._solver,
            lr=self._lr,
            until=until,
        )

    def consensus(self) -> nn.Module:
        """A copy of the model that holds u, the average of all workers, in evaluation mode."""
        weights = self._plan.weights
        module = self._model.module(
            average.consensus(self.workers.params, weights),
            average.consensus(self.workers.buffers, weights),
        )
        if self._recompute:
            recompute_statistics_(module, self._samples.inputs)
        return module

    def worker(self, row: int) -> nn.Module:
        """A copy of the model that holds one worker's parameters, in evaluation mode."""
        return self._model.module(self.workers.params[row], self.workers.buffers[row])

    def evaluate(self, samples: tuple[Tensor, Tensor]) -> Evaluation:
        """Loss and accuracy of the averaged model u."""
        inputs, targets = samples
        here = inputs.to(self._device), targets.to(self._device)
        return evaluate(self.consensus(), self._loss, here)

    def discrepancy(self) -> Discrepancy:
        """How far the workers are apart, in total and per part."""
        columns = average.discrepancy(self.workers.params, self._plan.weights)
        parts = average.per_part(columns, self._owners, len(self.partition.parts))
        return Discrepancy(float(columns.sum()), parts.tolist())

    def mean_loss(self, losses: Float[Tensor, "m"]) -> float:
        """The weighted mean of the workers' losses."""
        return float(self._plan.weights @ losses)

    def _batch(self, step: int) -> Batch:
        indices, keys = self._batches(step)
        indices = indices.to(self._device)
        inputs, targets = self._samples
        return Batch(inputs[indices], targets[indices], keys.to(self._device))


def _maker(name: str) -> Callable[..., Partition]:
    if name not in PARTITIONS:
        raise ValueError(f"partition {name!r} is not known: use {', '.join(PARTITIONS)}")
    return PARTITIONS[name]


def _buffer_parts(
    policy: str, partition: Partition, model: RowModel
) -> tuple[tuple[Span, ...], ...]:
    if policy not in get_args(Buffers):
        raise ValueError(f"buffers {policy!r} is not known: use {', '.join(get_args(Buffers))}")
    if policy == "part":
        return follow(partition, model.params, model.buffers).parts
    everything = (Span(0, model.buffers.size),) if policy == "every" and model.buffers.size else ()
    return (everything,) * len(partition.parts)


def _weights(policy: str, split: Sequence[Tensor]) -> Float[Tensor, "m"]:
    if policy not in get_args(Weights):
        raise ValueError(f"weights {policy!r} is not known: use {' or '.join(get_args(Weights))}")
    counts = torch.tensor([len(samples) for samples in split], dtype=torch.float64)
    shares = counts if policy == "samples" else torch.ones_like(counts)
    return shares / shares.sum()
