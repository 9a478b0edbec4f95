"""Models of a simulation on samples: in all processes, near the device or far from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from partavg.backends.client_models import evaluate_each
from partavg.backends.processes import Processes, dealt_evenly
from partavg.data.convert import as_samples
from partavg.data.gather import chosen_store, moved
from partavg.data.ownership import checked_split
from partavg.data.samples import Samples
from partavg.evaluation import Asked, Counts, Evaluation, Transform, count, scores_of
from partavg.scores.mean_loss import MeanLoss
from partavg.scores.score import MetricFailed, Score, Unmeasurable

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Judge:
    """Evaluates modules as one simulation sees samples."""

    loss: MeanLoss
    seen: Transform
    dtype: torch.dtype
    device: torch.device
    store: str
    processes: Processes

    def one(self, module: nn.Module, samples: Any, metrics: Asked) -> Evaluation:
        """A module, in this process."""
        scores = scores_of(metrics)
        return self._count(module, self.near(samples), scores).evaluation(scores)

    def all_together(self, module: nn.Module, samples: Any, metrics: Asked) -> Evaluation:
        """A module that all processes have: each evaluates it on some of the samples."""
        scores, known = scores_of(metrics), self._known(samples)
        own = self.near(known.some(self._share(known.size)))
        counts = made_by_all(self.processes, lambda: self._count(module, own, scores))
        return Counts.total(counts).evaluation(scores)

    def each(self, modules: Iterable[nn.Module], samples: Any, metrics: Asked) -> list[Evaluation]:
        """The modules of every process, each on all samples."""
        scores, known = scores_of(metrics), self.near(samples)

        def own() -> list[Evaluation]:
            return [self._count(module, known, scores).evaluation(scores) for module in modules]

        return [found for some in made_by_all(self.processes, own) for found in some]

    def clients(
        self,
        module: nn.Module,
        own: Mapping[str, Tensor],
        samples: Any,
        split: Sequence[Any],
        clients: int,
        metrics: Asked,
    ) -> list[Evaluation | None]:
        """A module with what is each client's `own`, on the samples of that client."""
        scores, known = scores_of(metrics), self._known(samples)
        owned = checked_split(split, known.size, clients, "the split", may_be_empty=True)
        here = owned[self._share(clients)]
        found = evaluate_each(module, own, self.loss, known, here, self.seen, scores)
        return [each for some in self.processes.each(found) for each in some]

    def near(self, samples: Any) -> Samples:
        """Samples on the device, unless those stay in host memory that are too many for it."""
        known = self._known(samples)
        near = chosen_store(known, self.device, self.store) == "device"
        return moved(known, self.device) if near else known

    def _share(self, count: int) -> slice:
        return dealt_evenly(count, self.processes.size)[self.processes.rank]

    def _count(self, module: nn.Module, samples: Samples, scores: Sequence[Score]) -> Counts:
        return count(module, self.loss, samples, self.seen, scores)

    def _known(self, samples: Any) -> Samples:
        return as_samples(samples, dtype=self.dtype)


def made_by_all(processes: Processes, make: Callable[[], Made]) -> list[Made]:
    """What each process makes; a metric that fails in one of them fails in all."""
    made: Made | None = None
    failure: MetricFailed | Unmeasurable | None = None
    try:
        made = make()
    except (MetricFailed, Unmeasurable) as error:
        failure = error
    told: list[Any] = processes.each((made, failure))
    for rank, (_, problem) in enumerate(told):
        if problem is not None:
            raise type(problem)(f"rank {rank}: {problem}" if rank else str(problem)) from failure
    return [value for value, _ in told]
