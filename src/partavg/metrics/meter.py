"""The meter of a run: rows of metrics from what happens, and the seconds of its phases."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from partavg.backends.lost import RankLost
from partavg.backends.simulate import Simulation
from partavg.config import Metrics
from partavg.core.loop import Record, unwatched
from partavg.data.samples import Samples
from partavg.metrics.metric import Metric, Row, Value
from partavg.metrics.moment import Moment, due
from partavg.metrics.table import METRICS, OF_CLIENTS, is_extra
from partavg.scores.classes import accuracy
from partavg.scores.score import MetricFailed, Score, Unmeasurable

_FEW = 4  # samples on which metrics are tried before a run begins


class Stopwatch:
    """Adds up the seconds spent in each phase of the training loop."""

    def __init__(self, seconds: dict[str, float], device: torch.device) -> None:
        self._seconds = seconds
        self._cuda = device if device.type == "cuda" else None
        self._phase = ""
        self._began = 0.0

    def __call__(self, phase: str) -> None:
        """A phase begins: what passed since the last call belongs to the one before."""
        if self._cuda:
            torch.cuda.synchronize(self._cuda)
        now = perf_counter()
        if self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._began
        self._phase, self._began = phase, now


class PendingRow:
    """A row of metrics; some of its numbers may still be on their way from a GPU.

    Nothing waits for them until they are asked for: a GPU can go on with the next step.
    """

    def __init__(self, values: dict[str, Value]) -> None:
        self._row: Row = dict(values)
        self._numbers = {key: value for key, value in values.items() if isinstance(value, Tensor)}
        self._sent: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in self._numbers.values()):
            self._numbers = {key: _on_the_way(tensor) for key, tensor in self._numbers.items()}
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._sent.record()

    def row(self) -> Row:
        """The row with all its numbers."""
        if self._sent:
            self._sent.synchronize()
        for key, tensor in self._numbers.items():
            self._row[key] = tensor.tolist()
        return self._row


def _on_the_way(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


class Meter:
    """Measures what the table of metrics holds, when it is due, and keeps the time if asked."""

    def __init__(
        self,
        simulation: Simulation,
        options: Metrics,
        steps: int,
        *,
        train: Samples | None = None,
        test: Samples | None = None,
        test_split: Sequence[Tensor] | None = None,
        asked: Sequence[Metric] | None = None,
        bytes_per_token: float | None = None,
    ) -> None:
        self._simulation, self._options = simulation, options
        self.asked = METRICS.asked(options.extra or ()) if asked is None else tuple(asked)
        """Those that the options name, or the caller."""
        if simulation.spending:
            _check_released(self.asked)
        self._metrics = _measured(options, self.asked)
        self._before_averaging: dict[str, Value] = {}
        self.timings: dict[str, float] = {}
        """Seconds in each phase, where they are wanted."""
        test = simulation.near(test) if test else None
        scores = [metric.score for metric in self.asked if metric.sums]
        self._now = Moment(
            simulation,
            options,
            steps,
            train,
            test,
            test_split,
            timings=self.timings,
            scores=scores,
            bytes_per_token=bytes_per_token,
        )
        if test:
            _try(simulation, options, test, scores)
        device = simulation.workers.params.device
        self._lap = Stopwatch(self.timings, device) if options.timings else unwatched

    def check_measured(self, key: str, asked_by: str) -> None:
        """Raise a ValueError if no row will have the metric that something goes by."""
        if reason := self._unmeasured(key):
            raise ValueError(
                f"{asked_by} goes by {key!r}, which this run does not measure: {reason}"
            )

    def _unmeasured(self, key: str) -> str:
        """Why no row has a metric; empty if rows have it."""
        now, known = self._now, {metric.key: metric for metric in self._metrics}
        if key not in known or known[key].when == "end":
            rows = [metric.key for metric in self._metrics if metric.better != "neither"]
            return f"use one like {', '.join(k for k in rows if known[k].when != 'end')}"
        if known[key].sums or key == "test_loss":
            if now.test is None:
                return "give test samples"
            if self._simulation.local:
                return "with local parameters nobody has the averaged model; use clients_accuracy"
        if key in OF_CLIENTS and not (now.test_split and self._options.clients_every):
            return "give the test samples of each client (test_split, metrics.clients_every)"
        view = key.removeprefix("accuracy_")
        if view != key and not is_extra(key) and view not in self._options.local_accuracy:
            return f"name {view} in metrics.local_accuracy"
        if now.test and not is_extra(key) and "accuracy" in key:
            few = self._simulation.evaluate_worker(0, now.test.some(slice(_FEW)))
            return "" if few.accuracy is not None else "outputs and targets are no classes"
        return ""

    def watch(self, phase: str) -> None:
        """Follow the training loop through its phases."""
        if phase == "averaging" and self._round_ends():
            self._lap("evaluation")
            self._before_averaging = self._measured("round")
        self._lap(phase)

    def measure(self, record: Record) -> PendingRow:
        """What is known after a step; not all of it need be finite."""
        values = {"step": record.step, **self._measured("step", record), **self._before_averaging}
        self._before_averaging = {}
        return PendingRow(values)

    def end(self, seconds: float = 0.0) -> Row:
        """What is measured once, after all steps, which took so many seconds."""
        return PendingRow(self._measured("end", seconds=seconds)).row()

    def _measured(
        self, when: str, record: Record | None = None, seconds: float = 0.0
    ) -> dict[str, Value]:
        """What is due at this moment."""
        moment = replace(self._now, taken=record, seconds=seconds)
        found = {m.key: _value(m, moment) for m in self._metrics if m.when == when}
        return {key: value for key, value in found.items() if value is not None}

    def _round_ends(self) -> bool:
        schedule = self._simulation.schedule
        gone = self._simulation.workers.step - schedule.start
        return due(gone, self._options.round_losses_every * schedule.interval)


class Diverged(RuntimeError):
    """Training met a number that is not finite."""


def _check_released(asked: Sequence[Metric]) -> None:
    """Raise a ValueError for what may look at more than a private run releases."""
    for metric in asked:
        if not metric.sums:
            raise ValueError(
                f"metric {metric.key!r} looks at the run, clients' models and samples included, "
                f"which privacy does not protect: leave it out, or use a function of outputs and "
                f"targets, which is measured on test samples"
            )


def _try(simulation: Simulation, options: Metrics, test: Samples, scores: Sequence[Score]) -> None:
    """Raise a ValueError for what cannot be measured, on a few samples: now, not in an hour."""
    wanted = list(scores)
    if options.local_accuracy and not any(score.key == "accuracy" for score in scores):
        wanted.append(Score("accuracy", accuracy))
    if not wanted:
        return
    try:
        simulation.evaluate_worker(0, test.some(slice(_FEW)), wanted)
    except MetricFailed as error:
        raise ValueError(str(error)) from error


def _value(metric: Metric, moment: Moment) -> Value:
    """What a metric measures; what comes from outside is checked."""
    try:
        if metric.sums or not is_extra(metric.key):
            return metric.value(moment)
        return _checked(metric, metric.value(moment))
    except Unmeasurable as error:
        raise MetricFailed(f"{error}, at step {moment.step}; leave it out") from error
    except (RankLost, MetricFailed):
        raise
    except Exception as error:
        if not is_extra(metric.key):
            raise
        raise MetricFailed(
            f"metric {metric.key!r} failed at step {moment.step} with {type(error).__name__}: "
            f"{error}; mend it, or begin again without it"
        ) from error


def _checked(metric: Metric, value: object) -> Value:
    if value is None:
        return None
    if isinstance(value, Mapping) and metric.when == "end" and not metric.only_one:
        return {str(key): float(number) for key, number in value.items()}
    numbers = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if numbers.ndim > 1 or numbers.is_complex():
        raise ValueError(f"it gave a tensor {list(numbers.shape)}: a number or a list is wanted")
    if numbers.ndim and metric.only_one:
        raise ValueError("it gave several numbers: a column, progress and means are for one")
    if metric.when == "end" and not bool(numbers.isfinite().all()):
        raise ValueError(f"it gave {numbers.tolist()}: it must be finite")
    return value if isinstance(value, int | float) else numbers.detach()


def _measured(options: Metrics, asked: Sequence[Metric]) -> list[Metric]:
    """The metrics of a run in the order of its rows: local models' as the recipe lists them."""
    listed = dict.fromkeys(f"accuracy_{view}" for view in options.local_accuracy)
    keys = iter(listed)
    known = [next(keys) if key in listed else key for key in METRICS if not is_extra(key)]
    found = {key: METRICS[key] for key in known} | {metric.key: metric for metric in asked}
    return list(found.values())


def finite(row: Row) -> bool:
    """Whether all numbers of a row are."""
    values = torch.tensor([v for x in row.values() for v in (x if isinstance(x, list) else [x])])
    return bool(values.isfinite().all())
