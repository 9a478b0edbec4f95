"""What is measured during a run, and how long its phases take."""

from time import perf_counter

import torch

from partavg.backends.simulate import Simulation
from partavg.config import Metrics
from partavg.core.loop import Record, unwatched
from partavg.data.dataset import Dataset
from partavg.folder import Row


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


class Meter:
    """Turns the records of a simulation into rows of metrics, and keeps the time if asked."""

    def __init__(self, simulation: Simulation, data: Dataset, metrics: Metrics, steps: int) -> None:
        self._simulation = simulation
        self._data = data
        self._metrics = metrics
        self._steps = steps
        self._round_losses: Row = {}
        self.timings: dict[str, float] = {}
        """Seconds in each phase, where they are wanted."""
        device = simulation.workers.params.device
        self._lap = Stopwatch(self.timings, device) if metrics.timings else unwatched

    def watch(self, phase: str) -> None:
        """Follow the training loop through its phases."""
        if phase == "averaging" and self._round_ends():
            self._lap("evaluation")
            self._round_losses = self._measure_round()
        self._lap(phase)

    def row(self, record: Record) -> Row:
        """What was measured after a step; not all of it need be finite."""
        metrics, step = self._metrics, record.step
        row: Row = {
            "step": step,
            "loss": self._simulation.mean_loss(record.losses),
            "lr": record.lr,
            "bytes": record.bytes,
            "messages": record.messages,
        }
        if due(step, metrics.discrepancy_every):
            total, parts = self._simulation.discrepancy()
            row["discrepancy"] = total
            if metrics.discrepancy_parts:
                row["discrepancy_parts"] = parts
        if step == self._steps or due(step, metrics.evaluate_every):
            test = self._simulation.evaluate(self._data.test)
            row |= {"accuracy": test.accuracy, "test_loss": test.loss, **self._local_accuracy()}
        row |= self._round_losses
        self._round_losses = {}
        return row

    def train_loss(self) -> float:
        """The loss of the averaged model on all training samples."""
        return self._simulation.evaluate(self._data.train).loss

    def _local_accuracy(self) -> Row:
        wanted = self._metrics.local_accuracy
        if not wanted:
            return {}
        most = None if set(wanted) - {"first"} else 1
        found = self._simulation.evaluate_workers(self._data.test, most)
        local = [evaluation.accuracy or 0.0 for evaluation in found]
        views: Row = {
            "first": lambda: local[0],
            "best": lambda: max(local),
            "mean": lambda: sum(local) / len(local),
            "all": lambda: local,
        }
        return {f"accuracy_{view}": views[view]() for view in wanted}

    def _round_ends(self) -> bool:
        schedule = self._simulation.schedule
        gone = self._simulation.workers.step - schedule.start
        return due(gone, self._metrics.round_losses_every * schedule.interval)

    def _measure_round(self) -> Row:
        """The losses of u and of the best local model, before they are averaged."""
        local = self._simulation.evaluate_workers(self._data.train)
        smallest = min(evaluation.loss for evaluation in local)
        return {"loss_smallest_local": smallest, "loss_global": self.train_loss()}


def finite(row: Row) -> bool:
    """Whether all numbers of a row are."""
    values = torch.tensor([v for x in row.values() for v in (x if isinstance(x, list) else [x])])
    return bool(values.isfinite().all())


def due(step: int, every: int) -> bool:
    """Whether a step is one of those that come `every` so often; 0 is never."""
    return every > 0 and step % every == 0
