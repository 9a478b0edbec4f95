"""The moments of a run at which something is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from partavg.backends.simulate import Simulation
from partavg.config import Metrics
from partavg.core.loop import Record
from partavg.data.samples import Samples
from partavg.evaluation import Evaluation
from partavg.scores.score import Score


@dataclass(frozen=True)
class Moment:
    """A moment of a run, and what can be known then; whatever is asked for is computed once.

    Most moments are right after a step. One at the end of a round lies before averaging, the last
    one after all steps: these have no record. Several processes ask for the same things in the
    same order, since an evaluation is work for all of them.
    """

    simulation: Simulation
    options: Metrics
    """How often what is measured."""
    steps: int
    """The last step of the run."""
    train: Samples | None = None
    test: Samples | None = None
    test_split: Sequence[Tensor] | None = None
    """The test samples of each client, where clients are measured."""
    taken: Record | None = None
    seconds: float = 0.0
    """How long the run took, known at its end."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds in each phase so far, where they are taken."""
    scores: Sequence[Score] = ()
    """What is measured on the test set beside the loss, and accuracy where there are classes."""
    bytes_per_token: float | None = None
    """Of the test text, where it is known."""

    @property
    def step(self) -> int:
        """Steps taken so far, this one included."""
        return self.simulation.workers.step

    @property
    def record(self) -> Record:
        """What the step did; there is none before averaging, nor at the end of a run."""
        if self.taken is None:
            raise ValueError("this moment has no record: measure it when = 'step'")
        return self.taken

    def due(self, every: int) -> bool:
        """Whether this step is one of those that come `every` so often; 0 is never."""
        return due(self.step, every)

    @cached_property
    def evaluates(self) -> bool:
        """Whether models are evaluated on the test set after this step."""
        wanted = self.step == self.steps or self.due(self.options.evaluate_every)
        return wanted and self.test is not None

    @property
    def private(self) -> bool:
        """Whether nothing is shown but what was released."""
        return self.simulation.spending is not None

    @cached_property
    def evaluates_average(self) -> bool:
        """Whether the averaged model is: with local parameters nobody has it."""
        return self.evaluates and not self.simulation.local

    @cached_property
    def evaluates_clients(self) -> bool:
        """Whether the clients' own models are evaluated after this step."""
        every = self.options.clients_every or 0
        wanted = every > 0 and (self.step == self.steps or self.due(every))
        return wanted and self.test_split is not None

    @cached_property
    def loss(self) -> Tensor:
        """The mini-batch loss, mean over the workers."""
        return self.simulation.mean_loss(self.record.losses)

    @cached_property
    def columns_apart(self) -> Tensor:
        """The discrepancy of each column of the parameters."""
        return self.simulation.columns_apart()

    @cached_property
    def on_test(self) -> Evaluation:
        """The averaged model on the test set."""
        return self.simulation.evaluate(_known(self.test, "test"), self.scores)

    @cached_property
    def on_train(self) -> Evaluation:
        """The averaged model on the training set."""
        return self.simulation.evaluate(_known(self.train, "train"))

    @cached_property
    def on_clients(self) -> list[Evaluation]:
        """Each client's own model on its own test samples; clients without any are left out."""
        assert self.test_split is not None
        found = self.simulation.evaluate_clients(_known(self.test, "test"), self.test_split)
        return [each for each in found if each is not None]

    @cached_property
    def local_accuracies(self) -> list[float]:
        """Of the workers' models on the test set; of the first only, if no other is asked for."""
        most = None if set(self.options.local_accuracy) - {"first"} else 1
        scores = [score for score in self.scores if score.key == "accuracy"]
        found = self.simulation.evaluate_workers(_known(self.test, "test"), most, scores)
        return [one.accuracy for one in found if one.accuracy is not None]

    @cached_property
    def round_samples(self) -> Samples:
        """Training samples for the losses at the end of a round, at equal distances."""
        samples = _known(self.train, "train")
        most = self.options.round_losses_samples
        if not 0 < most < samples.size:
            return samples
        device = samples.tensors[0].device
        return samples.some(torch.arange(most, device=device) * samples.size // most)


def due(step: int, every: int) -> bool:
    """Whether a step is one of those that come `every` so often; 0 is never."""
    return every > 0 and step % every == 0


def _known(samples: Samples | None, name: str) -> Samples:
    if samples is None:
        raise ValueError(f"this run has no {name} set: measure what needs none")
    return samples
