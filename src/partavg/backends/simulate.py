"""All workers in one process: the simulator."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partavg.core import average
from partavg.core.loop import Batch, Plan, Record, Watch, train, unwatched
from partavg.core.participation import Participation
from partavg.core.partition import PARTITIONS, Partition, Span, follow
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.workers import Workers
from partavg.data.batches import Batches
from partavg.data.dataset import Samples
from partavg.engines.choose import choose
from partavg.engines.fused.precision import Precision
from partavg.engines.model import Loss, RowModel
from partavg.evaluate import Evaluation, evaluate, recompute_statistics_
from partavg.solvers.sgd import SGD

Buffers = Literal["part", "every", "local", "recompute"]
Weights = Literal["uniform", "samples"]


Augment = Callable[[Tensor, Tensor | None], Tensor]
"""(stored inputs, a key per worker to draw from, or None when evaluating) -> what a model sees."""


class Discrepancy(NamedTuple):
    """How far the workers are from their mean u: (1/m) Σ_i ‖u − x_i‖²."""

    total: float
    per_part: list[float]


class Simulation:
    """Workers that train copies of one model, each on its own samples.

    `split` holds the indices of each worker's samples. `lr` is a number or a function of the
    step. `weights` are "uniform" or by "samples" owned. `buffers` says what becomes of
    BatchNorm's statistics: averaged with their "part", at "every" averaging, kept "local", or
    local and "recompute"d from training samples for evaluation. With `participation` only some
    of the workers train at a time. `transform` makes of stored samples what the model sees, for
    example `Images`. `precision` and `deterministic` are the fused engine's.
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
        participation: Participation | None = None,
        transform: Augment | None = None,
        engine: str = "auto",
        chunk: int = 0,
        precision: Precision = "auto",
        deterministic: bool = False,
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
        self._transform = transform or _as_stored
        if participation and participation.clients != len(split):
            raise ValueError(
                f"participation counts {participation.clients} clients, the split {len(split)}: "
                f"they must be the same"
            )

        if isinstance(partition, str):
            partition = _maker(partition)(self._model.params, schedule.parts, seed)
        self.schedule = schedule
        self.partition = partition
        self._owners = partition.owners().to(self._device)
        self._plan = Plan(
            schedule,
            partition,
            _buffer_parts(buffers, partition, self._model),
            _weights(weights, split).to(self._device, self._model.dtype),
            participation,
        )
        start = self._model.start()
        self.engine = choose(
            engine,
            chunk,
            self._model,
            start,
            self._batch(1),
            precision=precision,
            deterministic=deterministic,
        )
        self._engine = self.engine.build(self._model)
        rows = participation.active if participation else len(split)
        params, statistics = (row.expand(rows, -1).clone() for row in start)
        self.workers = Workers.start(
            params, statistics, self._model.params, self._solver, schedule.parts
        )
        if participation and participation.keeps:
            self.workers.keep(participation.clients)

    def clients(self, step: int) -> Int[np.ndarray, "m"]:
        """The worker whose samples each row reads at a step."""
        participation = self._plan.participation
        return participation(step) if participation else np.arange(len(self.workers.params))

    def train(self, until: int, watch: Watch = unwatched) -> Iterator[Record]:
        """Train up to step `until`; yield a record after each iteration."""
        return train(
            self.workers,
            self._engine,
            self._batch,
            plan=self._plan,
            solver=self._solver,
            lr=self._lr,
            until=until,
            watch=watch,
        )

    def consensus(self) -> nn.Module:
        """A copy of the model that holds u, the average of all workers, in evaluation mode."""
        weights = self._weights
        module = self._model.module(
            average.consensus(self.workers.params, weights),
            average.consensus(self.workers.buffers, weights),
        )
        if self._recompute:
            recompute_statistics_(module, self._samples.inputs, self._seen)
        return module

    def worker(self, row: int) -> nn.Module:
        """A copy of the model that holds one worker's parameters, in evaluation mode."""
        return self._model.module(self.workers.params[row], self.workers.buffers[row])

    def evaluate(self, samples: tuple[Tensor, Tensor]) -> Evaluation:
        """Loss and accuracy of the averaged model u."""
        return self._evaluate(self.consensus(), samples)

    def evaluate_worker(self, row: int, samples: tuple[Tensor, Tensor]) -> Evaluation:
        """Loss and accuracy of one worker's model."""
        return self._evaluate(self.worker(row), samples)

    def discrepancy(self) -> Discrepancy:
        """How far the workers are apart, in total and per part."""
        columns = average.discrepancy(self.workers.params, self._weights)
        parts = average.per_part(columns, self._owners, len(self.partition.parts))
        return Discrepancy(float(columns.sum()), parts.tolist())

    def mean_loss(self, losses: Float[Tensor, "m"]) -> float:
        """The weighted mean of the workers' losses."""
        return float(self._weights @ losses)

    @property
    def _weights(self) -> Tensor:
        """p_i of the workers that took the last step."""
        return self._plan.weights_at(max(1, self.workers.step))

    def _evaluate(self, module: nn.Module, samples: tuple[Tensor, Tensor]) -> Evaluation:
        inputs, targets = samples
        here = inputs.to(self._device), targets.to(self._device)
        return evaluate(module, self._loss, here, self._seen)

    def _seen(self, inputs: Tensor) -> Tensor:
        return self._transform(inputs, None)

    def _batch(self, step: int) -> Batch:
        participation = self._plan.participation
        active = participation(step) if participation else None
        indices, keys = (tensor.to(self._device) for tensor in self._batches(step, active))
        inputs, targets = self._samples
        return Batch(self._transform(inputs[indices], keys), targets[indices], keys)


def _as_stored(inputs: Tensor, keys: Tensor | None) -> Tensor:
    return inputs


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
