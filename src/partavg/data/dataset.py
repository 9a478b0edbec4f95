"""What a dataset is: tensors of samples to train on and to test on."""

from typing import NamedTuple

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
