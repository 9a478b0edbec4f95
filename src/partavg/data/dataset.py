"""What a dataset is: tensors of samples to train on and to test on."""

from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


class Samples(NamedTuple):
    """Inputs and targets, one row each per sample."""

    inputs: Shaped[Tensor, "n *x"]
    targets: Shaped[Tensor, "n *y"]


class Dataset(NamedTuple):
    """A classification task."""

    train: Samples
    test: Samples
    classes: int
    writers: Int[Tensor, "n"] | None = None
    """The writer of each training sample, where the dataset knows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    def reduced(self, train: int, test: int) -> "Dataset":
        """At most so many samples, evenly spread over those there are."""
        kept, judged = (
            torch.arange(min(wanted, len(samples.targets))) * len(samples.targets) // wanted
            if wanted < len(samples.targets)
            else slice(None)
            for wanted, samples in ((train, self.train), (test, self.test))
        )
        return Dataset(
            Samples(*(tensor[kept] for tensor in self.train)),
            Samples(*(tensor[judged] for tensor in self.test)),
            self.classes,
            None if self.writers is None else self.writers[kept],
        )
