"""What is measured during a run, and how long its phases take."""

from time import perf_counter

import torch
from torch import Tensor

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


class Measured:
    """A row of metrics; some of its numbers may still be on their way from a GPU.

    Nothing waits for them until they are asked for: a GPU can go on with the next step.
    """

    def __init__(self, row: Row, numbers: dict[str, Tensor]) -> None:
        self._row = row
        self._numbers = numbers
        self._sent: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in numbers.values()):
            self._numbers = {name: _on_the_way(tensor) for name, tensor in numbers.items()}
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._sent.record()

    def row(self) -> Row:
        """The row with all its numbers."""
        if self._sent:
            self._sent.synchronize()
        for name, tensor in self._numbers.items():
            self._row[name] = tensor.tolist()
        return self._row


def _on_the_way(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


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

    def measure(self, record: Record) -> Measured:
        """What is known after a step; not all of it need be finite."""
        metrics, step = self._metrics, record.step
        numbers = {"loss": self._simulation.mean_loss(record.losses)}
        if due(step, metrics.discrepancy_every):
            columns = self._simulation.columns_apart()
            numbers["discrepancy"] = columns.sum()
            if metrics.discrepancy_parts:
                numbers["discrepancy_parts"] = self._simulation.per_part(columns)
        row: Row = {
            "step": step,
            "loss": None,
            "lr": record.lr,
            "bytes": record.bytes,
            "messages": record.messages,
            **dict.fromkeys(numbers),
        }
        if step == self._steps or due(step, metrics.evaluate_every):
            test = self._simulation.evaluate(self._data.test)
            row |= {"accuracy": test.accuracy, "test_loss": test.loss, **self._local_accuracy()}
        row |= self._round_losses
        self._round_losses = {}
        return Measured(row, numbers)

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
        samples = _spread(self._data.train, self._metrics.round_losses_samples)
        smallest = min(found.loss for found in self._simulation.evaluate_workers(samples))
        loss = self._simulation.evaluate(samples).loss
        return {"loss_smallest_local": smallest, "loss_global": loss}


def _spread(samples: tuple[Tensor, Tensor], most: int) -> tuple[Tensor, Tensor]:
    """So many samples, at equal distances; 0 is all."""
    inputs, targets = samples
    if not 0 < most < len(inputs):
        return samples
    some = torch.arange(most, device=inputs.device) * len(inputs) // most
    return inputs[some], targets[some]


def finite(row: Row) -> bool:
    """Whether all numbers of a row are."""
    values = torch.tensor([v for x in row.values() for v in (x if isinstance(x, list) else [x])])
    return bool(values.isfinite().all())


def due(step: int, every: int) -> bool:
    """Whether a step is one of those that come `every` so often; 0 is never."""
    return every > 0 and step % every == 0
