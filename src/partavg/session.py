"""A session trains a simulation: measures it, notices divergence, saves it, stops early."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from time import perf_counter
from typing import Any, NoReturn

from torch import Tensor

from partavg import checkpoint
from partavg.backends.processes import OneProcess, Processes, dealt_evenly
from partavg.backends.simulate import Simulation
from partavg.best import Best, Patience
from partavg.client_files import ClientFiles
from partavg.config import Checkpoints
from partavg.core.loop import Record
from partavg.folder import RunFolder, write_json
from partavg.metrics.meter import Diverged as Diverged
from partavg.metrics.meter import Meter, PendingRow, finite
from partavg.metrics.metric import Row
from partavg.metrics.moment import due
from partavg.metrics.table import is_extra, summarize
from partavg.sinks.jsonl import JsonLines
from partavg.sinks.sink import Feed, RunInfo, Sink

Stop = Callable[[Row], bool]
"""Whether training is to end early, asked after every row."""


class Session:
    """Trains a simulation up to some step; iterate over it for the rows that were measured.

    With a `folder` all is kept there, and a session that was stopped can be restored from it. Of
    several `processes` all train; only the first one reads and writes the folder. A row is measured
    `every` so many steps, and at the end.
    """

    _rate = "training.lr"
    """What the user calls the learning rate."""

    def __init__(
        self,
        simulation: Simulation,
        steps: int,
        meter: Meter,
        *,
        settings: Mapping[str, Any],
        folder: RunFolder | None = None,
        checkpoints: Checkpoints,
        sinks: Sequence[Sink] = (),
        every: int = 1,
        stop: Stop | None = None,
        processes: Processes | None = None,
        judged_on: str = "test",
    ) -> None:
        self.steps, self.every = simulation.affordable(steps), every
        self._wanted = steps
        # Samples that decide when to stop are no test samples, whatever they are called.
        self._judged_on = "validation" if _patient_about(stop) else judged_on
        self.processes = processes or OneProcess()
        self._folder = folder
        self._writes = self.processes.rank == 0
        self._simulation, self._meter, self._settings = simulation, meter, settings
        self._checkpoints, self._sinks = checkpoints, list(sinks)
        self._metrics: JsonLines | None = None
        self._client_files = ClientFiles(folder.checkpoints) if folder else None
        if folder:
            self._metrics = JsonLines(
                folder.metrics_path, lambda step: due(step, checkpoints.every)
            )
        self._stop, self._stopped = stop, False
        self._best = Best.of(checkpoints.best, meter.asked) if checkpoints.best else None
        for asked_by, metric in (("best", checkpoints.best), ("stop", _patient_about(stop))):
            if metric:
                meter.check_measured(metric, asked_by)
        self._seconds = 0.0
        self._late: deque[tuple[Record, PendingRow]] = deque()
        self._rows: deque[Row] = deque()
        self._all: list[Row] = []
        hurries = simulation.workers.params.is_cuda and not (stop or self._best)
        self.lag = 2 if hurries else 0
        """Rows that may come late: a GPU never waits for us, unless each row decides something."""

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
        """The same, with more sinks; all are told a label, and of what comparison this is."""
        folder = self._folder if self._writes else None
        if folder:
            folder.diverged_path.unlink(missing_ok=True)
        try:
            yield from self._train(label, sinks, group)
        except Diverged as error:
            if folder:
                folder.note_diverged(str(error))
            raise

    def _train(self, label: str, sinks: Sequence[Sink], group: str) -> Generator[Row, None, None]:
        kept = [self._metrics] if self._metrics else []
        places: list[Sink] = [*kept, *self._sinks, *sinks] if self._writes else []
        with Feed(places, self._about(label, group)) as self._feed:
            began = perf_counter() - self._seconds  # sinks may take their time to begin
            if self.step == 0 and self._checkpoints.every:
                self.save()  # if there is no room for checkpoints, say so now
            if not self._stopped:
                for record in self._simulation.train(self.steps, self._meter.watch):
                    self._take(record)
                    self._seconds = perf_counter() - began
                    if due(record.step, self._checkpoints.every):
                        self.save()
                    while self._rows:
                        try:
                            yield self._rows.popleft()
                        except GeneratorExit:  # the caller stops here
                            self._receive()
                            raise
                    if self._stopped:
                        break
            self._feed.end(self._finish())

    def save(self) -> None:
        """Write a checkpoint of the present step, where there is a folder."""
        self._settle()
        if self._folder is None:
            return
        files = self._client_files
        whole = self.processes.first(lambda: files is None or files.begin_anew)
        workers, beside = self._simulation.state(whole=whole), list[str]()
        if self._writes:
            assert self._metrics
            assert files
            if workers["bank"]:
                workers["bank"], beside = files.save(workers["bank"])
            checkpoint.save(
                self._folder.checkpoints,
                self.step,
                {
                    "workers": workers,
                    "beside": beside,
                    "metrics_length": self._metrics.length,
                    "seconds": self._seconds,
                    "timings": dict(self._meter.timings),
                },
            )
        self._simulation.saved()

    def restore(self) -> None:
        """Go on from the newest checkpoint; without one the start is the same again."""
        assert self._folder
        assert self._metrics
        assert self._client_files
        folder, files, saved = self._folder, self._client_files, Row()

        def load() -> tuple[Row, list[Row]]:
            saved.update(checkpoint.load(folder.checkpoints) or {})
            if beside := saved.get("beside"):
                workers = saved["workers"]
                saved["workers"] = {**workers, "bank": files.load(workers["bank"], beside)}
            length = saved.get("metrics_length", 0)
            folder.check_metrics(length)
            looks_back = saved and (self._stop or self._best)
            rows = folder.rows(length) if looks_back else ()
            return {k: v for k, v in saved.items() if k != "workers"}, list(rows)

        about, rows = self.processes.first(load)
        if not about:
            return
        self._simulation.load(saved.get("workers"))
        self._simulation.saved()
        self._metrics.length = about["metrics_length"]
        self._seconds = about["seconds"]
        self._meter.timings.update(about["timings"])
        for row in rows:
            self._decide(row, again=True)

    def _take(self, record: Record) -> None:
        """Measure a step, if it is one that is measured."""
        last = record.step == self.steps
        if last or due(record.step, self.every):
            self._late.append((record, self._meter.measure(record)))
        self._receive(0 if last else self.lag)

    def _settle(self) -> None:
        """Write the rows of all steps so far; stop if a model is not finite."""
        self._receive()
        self._check_finite(self._simulation.largest(), "a parameter", self.step)

    def _receive(self, lag: int = 0) -> None:
        """Check and write the rows of all steps but the last few."""
        while len(self._late) > lag:
            record, measured = self._late.popleft()
            row = measured.row()
            if not finite(row):
                self._blame(record, row)
            self._feed.take(row)
            self._rows.append(row)
            if self._folder is None:
                self._all.append(row)
            self._decide(row)

    def _decide(self, row: Row, *, again: bool = False) -> None:
        """Keep the model if it is the best one; see whether to stop. Rows may come `again`."""
        if self._best and self._best.take(row) and not again:
            model = self._simulation.consensus().cpu()
            if self._folder and self._writes:
                checkpoint.save_model(self._folder.best_path, model.state_dict())
        if self._stop:
            stop = self._stop
            self._stopped |= self.processes.first(lambda: bool(stop(row)))

    def _blame(self, record: Record, row: Row) -> NoReturn:
        """Say what is not finite; of a private run nothing about a worker."""
        if not self._simulation.spending:
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
        path = self._folder.path if self._folder else None
        called = label or (path.name if path else "run")
        asked = self._meter.asked
        return RunInfo(called, self.steps, self.step, self._settings, path, asked, group)

    def _finish(self) -> Row:
        """Save the last step, the averaged model and the summary; the summary marks the end."""
        if self._checkpoints.final:
            self.save()
        else:
            self._settle()
        folder = self._folder
        model = self._simulation.consensus().cpu() if folder else None
        ended = self._meter.end(self._seconds)
        if not self._writes:
            return {}
        summary = {
            "steps": self.step,
            "scale": self._settings.get("training.scale", 1.0),
            **({} if self._judged_on == "test" else {"judged_on": self._judged_on}),
            **summarize(list(folder.rows()) if folder else self._all, ended, self._meter.asked),
            **self._simulation.spent(),
            **(self._best.summary if self._best else {}),
        }
        if self._stopped and self.step < self.steps:
            summary["stopped_at"] = self.step
        elif self.steps < self._wanted:
            summary |= {"stopped_at": self.steps, "stopped_by": "max_epsilon"}
        if folder and model:
            checkpoint.save_model(folder.model_path, model.state_dict())
            write_json(folder.summary_path, summary)
            checkpoint.keep(folder.checkpoints, int(self._checkpoints.final))
        return summary

    def _check_finite(self, values: Tensor, what: str, step: int) -> None:
        """Stop if the value of a worker is not finite."""
        finite = values.isfinite()
        if bool(finite.all()):
            return
        if self._simulation.spending:
            raise Diverged(f"{what} of the model is not finite at step {step}: {self._rescue()}")
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
        lower = f"lower {self._rate} = {self._settings['training.lr']}"
        saved = checkpoint.latest_step(self._folder.checkpoints) if self._folder else None
        if saved is None or self._folder is None:
            return lower
        where = f"that of step {saved} in {self._folder.checkpoints}"
        return f"{lower}; the last good checkpoint is {where}"


def _patient_about(stop: Stop | None) -> str:
    """The metric by which it is decided when to stop, where that can be known."""
    return stop.metric if isinstance(stop, Patience) else ""
