"""A client's models on the test samples that it owns: sums and counts, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord
from torch import nn

from partavg.data.samples import Samples
from partavg.evaluation import Transform, count
from partavg.flower import scores
from partavg.scores.mean_loss import MeanLoss
from partavg.scores.score import Score


@dataclass(frozen=True, slots=True)
class Examiner:
    """Examines models on a client's own test samples."""

    samples: Samples
    loss: MeanLoss
    seen: Transform
    wanted: Sequence[Score]
    local: bool = False
    """Whether its local model is examined, too."""

    def examined(self, models: Mapping[str, nn.Module]) -> ConfigRecord:
        """What a client says of some models: their sums and counts, and of how many samples."""
        found = {
            name: count(model, self.loss, self.samples, self.seen, self.wanted)
            for name, model in models.items()
        }
        return scores.written(found, self.samples.size, self.wanted)
