"""A run: train what a config describes, measure it, save it."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NoReturn

import torch
from torch import Tensor

from partavg import build, checkpoint
from partavg.backends.processes import OneProcess, Processes, check_same, dealt_evenly
from partavg.config import Config
from partavg.config_toml import settings
from partavg.core.loop import Record
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder, write_json
from partavg.metrics.meter import Diverged as Diverged
from partavg.metrics.meter import Meter, PendingRow, finite
from partavg.metrics.metric import Row
from partavg.metrics.moment import due
from partavg.metrics.table import is_extra, summarize
from partavg.sinks import chosen
from partavg.sinks.jsonl import JsonLines
from partavg.sinks.sink import Feed, RunInfo, Sink


class Run:
    """One training run in its folder; iterate over it to train.

    Building it checks everything that can be checked before work starts. Of several
    `processes` all train; only the first one reads and writes the folder.
    """

    def __init__(
        self,
        config: Config,
        data: Dataset,
        folder: RunFolder,
        *,
        resume: bool,
        force: bool,
        processes: Processes | None = None,
    ) -> None:
        self.folder = folder
        self.processes = processes or OneProcess()
        self._writes = self.processes.rank == 0
        _check_same(self.processes, config, data)
        resuming, config = self.processes.first(lambda: _found(folder, config, resume, force))
        device = build.device(config, self.processes)
        self.steps = build.steps(config, data)
        self._simulation = build.simulation(config, data, device, self.processes)
        known = build.scaled(config, data)
        self._meter = Meter(
            self._simulation,
            build.metrics(config),
            self.steps,
            train=known.train,
            test=known.test,
        )
        engine = self._simulation.engine
        execution = replace(
            config.engine,
            name=engine.name,
            chunk=engine.chunk,
            device=_plain(device, self.processes),
        )
        if engine.name == "fused":
            execution = replace(execution, precision=engine.precision)
        self.config = replace(config, engine=execution)
        self.engine_reason = engine.reason
        self._sinks = chosen(config.metrics)
        self._metrics = JsonLines(
            folder.metrics_path, lambda step: due(step, config.checkpoints.every)
        )
        self._seconds = 0.0
        self._late: deque[tuple[Record, PendingRow]] = deque()
        self._rows: deque[Row] = deque()
        self.lag = 2 if device.type == "cuda" else 0
        """Steps that may be begun before the metrics of one are read: a GPU never waits for us."""
        if resuming:
            self._restore()
        self.processes.first(lambda: self._write_start(resuming, data))

    @property
    def workers(self) -> int:
        """Workers that train at a time, in all processes."""
        return self._simulation.active

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self._simulation.workers.step

    def __iter__(self) -> Generator[Row, None, None]:
        """Train to the end; yield the metrics of each step. Stop between rows to `save`."""
        return self.train()

    def train(
        self, label: str = "", sinks: Sequence[Sink] = (), group: str = ""
    ) -> Generator[Row, None, None]:
        """The same, with more sinks than those of the recipe, which are told a label and group."""
        began = perf_counter() - self._seconds
        places = [self._metrics, *self._sinks, *sinks] if self._writes else []
        with Feed(places, self._about(label, group)) as self._feed:
            if self.step == 0 and self.config.checkpoints.every:
                self.save()  # if there is no room for checkpoints, say so now
            for record in self._simulation.train(self.steps, self._meter.watch):
                self._late.append((record, self._meter.measure(record)))
                self._receive(self.lag if record.step < self.steps else 0)
                self._seconds = perf_counter() - began
                if due(record.step, self.config.checkpoints.every):
                    self.save()
                while self._rows:
                    try:
                        yield self._rows.popleft()
                    except GeneratorExit:  # the caller stops here
                        self._receive()
                        raise
            self._feed.end(self._finish())

    def save(self) -> None:
        """Write a checkpoint of the present step."""
        self._settle()
        workers = self._simulation.state()
        if self._writes:
            checkpoint.save(
                self.folder.checkpoints,
                self.step,
                {
                    "workers": workers,
                    "metrics_length": self._metrics.length,
                    "seconds": self._seconds,
                    "timings": dict(self._meter.timings),
                },
            )

    def _settle(self) -> None:
        """Write the rows of all steps so far; stop if a model is not finite."""
        self._receive()
        self._check_finite(self._simulation.largest(), "a parameter", self.step)

    def _write_start(self, resuming: bool, data: Dataset) -> None:
        if not resuming:
            self.folder.write_start(self.config, self.engine_reason, self.processes.size)
        elif not self.folder.environment_path.exists():  # killed right after the config was written
            self.folder.write_environment(self.config, self.engine_reason, self.processes.size)
        if not self.folder.split_path.exists():
            self.folder.write_split(build.label_counts(self.config, data))

    def _restore(self) -> None:
        saved: Row = {}

        def load() -> Row:
            saved.update(checkpoint.load(self.folder.checkpoints) or {})
            self.folder.check_metrics(saved.get("metrics_length", 0))
            return {key: value for key, value in saved.items() if key != "workers"}

        about = self.processes.first(load)
        if not about:  # stopped before the first one: the start is the same again
            return
        self._simulation.load(saved.get("workers"))
        self._metrics.length = about["metrics_length"]
        self._seconds = about["seconds"]
        self._meter.timings.update(about["timings"])

    def _receive(self, lag: int = 0) -> None:
        """Check and write the rows of all steps but the last few."""
        while len(self._late) > lag:
            record, measured = self._late.popleft()
            row = measured.row()
            if not finite(row):
                self._blame(record, row)
            self._feed.take(row)
            self._rows.append(row)

    def _blame(self, record: Record, row: Row) -> NoReturn:
        """Say what is not finite."""
        self._check_finite(record.losses, "the loss", record.step)
        squares = self._simulation.largest().square()
        self._check_finite(squares, "the square of a parameter", record.step)
        for key in row:
            if is_extra(key) and not finite({key: row[key]}):
                raise Diverged(
                    f"metric {key!r} is {row[key]} at step {record.step}: it must be finite, or "
                    f"None where there is nothing to measure"
                )
        raise Diverged(f"the averaged model is not finite at step {record.step}: {self._rescue()}")

    def _about(self, label: str, group: str) -> RunInfo:
        return RunInfo(
            label or self.folder.path.name,
            self.steps,
            self.step,
            settings(self.config),
            self.folder.path,
            group,
        )

    def _finish(self) -> Row:
        """Save the last step, the averaged model and the summary; the summary marks the end."""
        if self.config.checkpoints.final:
            self.save()
        else:
            self._settle()
        model = self._simulation.consensus().cpu()
        ended = self._meter.end(self._seconds)
        if not self._writes:
            return {}
        torch.save(model.state_dict(), self.folder.model_path)
        summary = {
            "steps": self.step,
            "scale": self.config.training.scale,
            **summarize(list(self.folder.rows()), ended),
        }
        write_json(self.folder.summary_path, summary)
        checkpoint.keep(self.folder.checkpoints, int(self.config.checkpoints.final))
        return summary

    def _check_finite(self, values: Tensor, what: str, step: int) -> None:
        """Stop if the value of a worker is not finite."""
        finite = values.isfinite()
        if bool(finite.all()):
            return
        workers = finite.logical_not().nonzero().flatten().tolist()
        names = ", ".join(map(self._named, workers[:5]))
        more = f" and {len(workers) - 5} more" if len(workers) > 5 else ""
        raise Diverged(
            f"{what} of worker {names}{more} is not finite at step {step}: {self._rescue()}"
        )

    def _named(self, worker: int) -> str:
        """A worker by its number, and where it is if there are several processes."""
        if self.processes.size == 1:
            return str(worker)
        dealt = dealt_evenly(self.workers, self.processes.size)
        rank = next(rank for rank, share in enumerate(dealt) if worker < share.stop)
        return f"{worker} (rank {rank})"

    def _rescue(self) -> str:
        lower = f"lower training.lr = {self.config.training.lr}"
        saved = checkpoint.latest_step(self.folder.checkpoints)
        if saved is None:
            return lower
        where = f"that of step {saved} in {self.folder.checkpoints}"
        return f"{lower}; the last good checkpoint is {where}"


def _found(folder: RunFolder, config: Config, resume: bool, force: bool) -> tuple[bool, Config]:
    """Whether there is a run to resume, and the config to go by; a ValueError if neither."""
    folder.check_free(resume=resume, force=force)
    resuming = resume and folder.exists
    return resuming, folder.stored_config(config) if resuming else config


def _check_same(processes: Processes, config: Config, data: Dataset) -> None:
    """Raise a ValueError if processes were started with other recipes or other data."""
    told = processes.each(settings(config))
    for key in {key: None for one in told for key in one}:
        check_same(f"{key} =", [one.get(key) for one in told])
    check_same("training samples:", processes.each(len(data.train.targets)))


def _plain(device: torch.device, processes: Processes) -> str:
    """A device as the recipe names it: each of several ranks has a GPU of its own number."""
    return str(device) if processes.size == 1 else device.type
