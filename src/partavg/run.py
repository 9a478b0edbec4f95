"""A run: build what a config describes, train it, measure it, save it."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import checkpoint
from partavg.backends.simulate import Simulation
from partavg.config import Config, Execution, build
from partavg.core.loop import Record
from partavg.core.partition import PARTITIONS
from partavg.core.schedule import Schedule
from partavg.core.seeds import fold, seeded
from partavg.data.batches import Batches
from partavg.data.dataset import Dataset
from partavg.engines.model import RowModel
from partavg.folder import Row, RunFolder, write_json


class Diverged(RuntimeError):
    """Training met a number that is not finite."""


class Run:
    """One training run in its folder; iterate over it to train.

    Building it checks everything that can be checked before work starts.
    """

    def __init__(
        self, config: Config, data: Dataset, folder: RunFolder, *, resume: bool, force: bool
    ) -> None:
        folder.check_free(resume=resume, force=force)
        self.folder = folder
        resuming = resume and folder.exists
        if resuming:
            config = folder.stored_config(config)
        device = _device(config.engine.device)
        self._data = data
        self._simulation = simulation(config, data, device)
        engine = self._simulation.engine
        self.config = replace(
            config, engine=Execution(name=engine.name, chunk=engine.chunk, device=str(device))
        )
        self.engine_reason = engine.reason
        self._metrics_length = 0
        self._seconds = 0.0
        if resuming:
            self._restore()
            if not folder.environment_path.exists():  # killed right after the config was written
                folder.write_environment(self.config, engine.reason)
        else:
            folder.write_start(self.config, engine.reason)

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self._simulation.workers.step

    def __iter__(self) -> Iterator[Row]:
        """Train to the end; yield the metrics of each step. Stop between rows to `save`."""
        began = perf_counter() - self._seconds
        with self.folder.open_metrics(self._metrics_length) as metrics:
            if self.step == 0:
                self.save()
            for record in self._simulation.train(self.config.training.steps):
                row = self._measure(record)
                self._write(metrics, row)
                self._seconds = perf_counter() - began
                if _due(record.step, self.config.checkpoints.every):
                    os.fsync(metrics.fileno())
                    self.save()
                yield row
        self._finish()

    def save(self) -> None:
        """Write a checkpoint of the present step."""
        workers = self._simulation.workers
        self._check_finite(_largest(workers.params), "a parameter", self.step)
        checkpoint.save(
            self.folder.checkpoints,
            workers.step,
            {
                "workers": {name: getattr(workers, name) for name in workers.__slots__},
                "metrics_length": self._metrics_length,
                "seconds": self._seconds,
            },
        )

    def _restore(self) -> None:
        saved = checkpoint.load(self.folder.checkpoints)
        if saved is None:  # stopped before the first one: the start is the same again
            return
        self.folder.check_metrics(saved["metrics_length"])
        workers = self._simulation.workers
        for name, value in saved["workers"].items():
            own = getattr(workers, name)
            if isinstance(own, Tensor):
                own.copy_(value)
            elif isinstance(own, dict):
                for key, tensor in own.items():
                    tensor.copy_(value[key])
            else:
                setattr(workers, name, value)
        self._metrics_length = saved["metrics_length"]
        self._seconds = saved["seconds"]

    def _measure(self, record: Record) -> Row:
        step, last = record.step, record.step == self.config.training.steps
        self._check_finite(record.losses, "the loss", step)
        row: Row = {
            "step": step,
            "loss": self._simulation.mean_loss(record.losses),
            "lr": record.lr,
            "bytes": record.bytes,
            "messages": record.messages,
        }
        if last or _due(step, self.config.metrics.discrepancy_every):
            row["discrepancy"] = self._simulation.discrepancy().total
        if last or _due(step, self.config.metrics.evaluate_every):
            test = self._simulation.evaluate(self._data.test)
            row |= {"accuracy": test.accuracy, "test_loss": test.loss}
        if not all(math.isfinite(value) for value in row.values()):
            squares = _largest(self._simulation.workers.params).square()
            self._check_finite(squares, "the square of a parameter", step)
            raise Diverged(f"the averaged model is not finite at step {step}: {self._rescue()}")
        return row

    def _write(self, metrics: TextIO, row: Row) -> None:
        line = json.dumps(row) + "\n"
        metrics.write(line)
        metrics.flush()
        self._metrics_length += len(line)

    def _finish(self) -> None:
        """Save the last step, the averaged model and the summary; the summary marks the end."""
        self.save()
        model = self._simulation.consensus().cpu()
        torch.save(model.state_dict(), self.folder.model_path)
        rows = list(self.folder.rows())
        discrepancies = [row["discrepancy"] for row in rows if "discrepancy" in row]
        last = rows[-1]
        summary: dict[str, Any] = {
            "steps": last["step"],
            "accuracy": last["accuracy"],
            "test_loss": last["test_loss"],
            "train_loss": self._simulation.evaluate(self._data.train).loss,
            "mean_discrepancy": sum(discrepancies) / len(discrepancies),
            "peak_discrepancy": max(discrepancies),
            "bytes": last["bytes"],
            "messages": last["messages"],
            "seconds": round(self._seconds, 3),
        }
        write_json(self.folder.summary_path, summary)

    def _check_finite(self, values: Tensor, what: str, step: int) -> None:
        """Stop if the value of a worker is not finite."""
        finite = values.isfinite()
        if bool(finite.all()):
            return
        workers = finite.logical_not().nonzero().flatten().tolist()
        names = ", ".join(map(str, workers[:5]))
        more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
        raise Diverged(
            f"{what} of worker {names}{more} is not finite at step {step}: {self._rescue()}"
        )

    def _rescue(self) -> str:
        saved = checkpoint.latest_step(self.folder.checkpoints)
        return (
            f"lower training.lr = {self.config.training.lr}; "
            f"the last good checkpoint is that of step {saved} in {self.folder.checkpoints}"
        )


def simulation(config: Config, data: Dataset, device: torch.device) -> Simulation:
    """The simulation that a config describes, before its first step."""
    training, averaging = config.training, config.averaging
    return Simulation(
        _model(config, data),
        F.cross_entropy,
        data.train,
        build("split", config.split, data.train.targets, training.workers, training.seed),
        schedule=_schedule(config),
        lr=training.lr,
        batch=training.batch,
        solver=build("solver", config.solver),
        partition=averaging.partition,
        weights=averaging.weights,
        buffers=averaging.buffers,
        engine=config.engine.name,
        chunk=config.engine.chunk,
        seed=training.seed,
        device=device,
    )


def check(config: Config, data: Dataset) -> None:
    """Raise a ValueError for whatever would stop a run of this config from starting."""
    training, averaging = config.training, config.averaging
    parts = _schedule(config).parts
    split = build("split", config.split, data.train.targets, training.workers, training.seed)
    Batches(split, training.batch, training.seed)
    build("solver", config.solver)
    params = RowModel(_model(config, data), F.cross_entropy, torch.device("cpu")).params
    PARTITIONS[averaging.partition](params, parts, training.seed)
    _device(config.engine.device)


def _schedule(config: Config) -> Schedule:
    assert config.averaging.parts is not None
    return Schedule(config.averaging.interval, config.averaging.parts)


def _model(config: Config, data: Dataset) -> nn.Module:
    """The model, initialized as the seed says."""
    with seeded(fold(config.training.seed, "model"), torch.device("cpu")):
        model: nn.Module = build("model", config.model, data.shape, data.classes)
    return model


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        probe = torch.ones(1, device=name)
        probe.item()
        return probe.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"engine.device = {name!r} cannot be used: {reason}; use cpu") from None


def _largest(rows: Tensor) -> Tensor:
    """The largest absolute value of each row: finite if and only if all are; needs no memory."""
    largest: Tensor = torch.linalg.vector_norm(rows, float("inf"), dim=1)
    return largest


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
