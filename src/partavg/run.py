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
from partavg.config import Config, build
from partavg.core.loop import Record
from partavg.core.partition import PARTITIONS
from partavg.core.schedule import Schedule
from partavg.core.seeds import fold
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
        self.finished = resuming and folder.finished
        self._data = data
        self._simulation = simulation(config, data)
        engine = self._simulation.engine
        self.config = replace(
            config, engine=replace(config.engine, name=engine.name, chunk=engine.chunk)
        )
        self.engine_reason = engine.reason
        self._metrics_length = 0
        self._seconds = 0.0
        if resuming:
            self._restore()
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
        self._check_finite(workers.params.isfinite().all(1), "a parameter", self.step)
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
        workers = self._simulation.workers
        saved = checkpoint.load(self.folder.checkpoints, workers.params.device)
        if saved is None:  # stopped before the first one: the start is the same again
            return
        for name, value in saved["workers"].items():
            setattr(workers, name, value)
        self._metrics_length = saved["metrics_length"]
        self._seconds = saved["seconds"]

    def _measure(self, record: Record) -> Row:
        step, last = record.step, record.step == self.config.training.steps
        self._check_finite(record.losses.isfinite(), "the loss", step)
        row: Row = {
            "step": step,
            "loss": self._simulation.mean_loss(record.losses),
            "lr": record.lr,
            "bytes": record.bytes,
            "messages": record.messages,
        }
        if last or _due(step, self.config.metrics.discrepancy_every):
            row["discrepancy"] = self._simulation.discrepancy().total
            if not math.isfinite(row["discrepancy"]):
                finite = self._simulation.workers.params.isfinite().all(1)
                self._check_finite(finite, "a parameter", step)
        if last or _due(step, self.config.metrics.evaluate_every):
            test = self._simulation.evaluate(self._data.test)
            row |= {"accuracy": test.accuracy, "test_loss": test.loss}
        return row

    def _write(self, metrics: TextIO, row: Row) -> None:
        line = json.dumps(row) + "\n"
        metrics.write(line)
        metrics.flush()
        self._metrics_length += len(line)

    def _finish(self) -> None:
        """Save the last step, the averaged model and the summary; the summary marks the end."""
        self.save()
        torch.save(self._simulation.consensus().state_dict(), self.folder.model_path)
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
        self.finished = True

    def _check_finite(self, finite: Tensor, what: str, step: int) -> None:
        """Stop if a worker has a number that is not finite."""
        if bool(finite.all()):
            return
        workers = finite.logical_not().nonzero().flatten().tolist()
        names = ", ".join(map(str, workers[:5]))
        more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
        saved = checkpoint.latest_step(self.folder.checkpoints)
        raise Diverged(
            f"{what} of worker {names}{more} is not finite at step {step}: "
            f"lower training.lr = {self.config.training.lr}; "
            f"the last good checkpoint is that of step {saved} in {self.folder.checkpoints}"
        )


def simulation(config: Config, data: Dataset) -> Simulation:
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
        device=_device(config.engine.device),
    )


def check(config: Config, data: Dataset) -> None:
    """Raise a ValueError for whatever would stop a run of this config from starting."""
    training, averaging = config.training, config.averaging
    parts = _schedule(config).parts
    build("split", config.split, data.train.targets, training.workers, training.seed)
    build("solver", config.solver)
    params = RowModel(_model(config, data), F.cross_entropy, torch.device("cpu")).params
    PARTITIONS[averaging.partition](params, parts, training.seed)
    _device(config.engine.device)


def _schedule(config: Config) -> Schedule:
    assert config.averaging.parts is not None
    return Schedule(config.averaging.interval, config.averaging.parts)


def _model(config: Config, data: Dataset) -> nn.Module:
    """The model, initialized as the seed says."""
    with torch.random.fork_rng():
        torch.manual_seed(fold(config.training.seed, "model"))
        model: nn.Module = build("model", config.model, data.shape, data.classes)
    return model


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"engine.device = {name!r} cannot be used: {reason}; use cpu") from None


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
