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
    test_writers: Int[Tensor, "_"] | None = None
    """The writer of each test sample, numbered as those of the training samples."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    def check(self, name: str) -> None:
        """Raise a ValueError if its tensors do not fit each other."""
        if not isinstance(self.classes, int):
            raise ValueError(f"dataset {name} has classes {self.classes!r}: give their number")
        for what, samples in (("training", self.train), ("test", self.test)):
            inputs, targets = samples
            if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor)):
                raise ValueError(f"dataset {name} has {what} samples that are no tensors")
            if not len(inputs) or len(inputs) != len(targets) or inputs.shape[1:] != self.shape:
                raise ValueError(
                    f"dataset {name} has {what} inputs {list(inputs.shape)} and targets "
                    f"{list(targets.shape)}: give as many of both, inputs of one shape"
                )
            labels = targets.ndim == 1 and not targets.is_floating_point()
            if labels and not 0 <= int(targets.min()) <= int(targets.max()) < self.classes:
                raise ValueError(
                    f"dataset {name} has {what} targets from {int(targets.min())} to "
                    f"{int(targets.max())}: with {self.classes} classes, use 0 to "
                    f"{self.classes - 1}"
                )

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
            None if self.test_writers is None else self.test_writers[judged],
        )
