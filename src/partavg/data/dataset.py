"""What a dataset is: samples to train on and to test on."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.arguments import check_number, check_whole
from partavg.core.inputs import Inputs
from partavg.data.convert import as_samples
from partavg.data.fingerprint import short_fingerprint
from partavg.data.ids import numbered_alike
from partavg.data.samples import Samples, shapes

__all__ = ["Dataset", "Samples"]


class _Fields(NamedTuple):
    train: Samples
    test: Samples
    classes: Any = None
    """How many there are; None where targets are no classes."""
    writers: Int[Tensor, "n"] | None = None
    """The writer, or any other client, of each training sample, where the dataset knows."""
    test_writers: Int[Tensor, "_"] | None = None
    """That of each test sample, numbered as those of the training samples."""
    bytes_per_token: float | None = None
    """Of a test text, where it is known: what bits per byte are counted by."""


class Dataset(_Fields):
    """A task: samples to train on and to test on, in any form that `as_samples` takes.

    `classes` is their number, if targets are classes. `writers` is the client of each training
    sample, if it is known: a number, or any name. `test_writers` is that of each test sample.
    `bytes_per_token` is for texts, whose classes are the tokens: how long one is on average.

    >>> x, y = torch.zeros(6, 4), torch.arange(6) % 3
    >>> data = Dataset(train=(x[:4], y[:4]), test=(x[4:], y[4:]), classes=3)
    >>> data.shape, data.train.size
    ((4,), 4)
    """

    __slots__ = ()

    def __new__(
        cls,
        train: Any,
        test: Any,
        classes: int | None = None,
        writers: Any = None,
        test_writers: Any = None,
        bytes_per_token: float | None = None,
    ) -> "Dataset":
        """Look at what is given, and make samples of it."""
        who, tested = numbered_alike(writers, test_writers)
        if classes is not None:
            classes = check_whole("classes", classes, 0)
        samples = _samples(train, "training"), _samples(test, "test")
        for what, ids, owned in zip(("", "test_"), (who, tested), samples, strict=True):
            if ids is not None and len(ids) != owned.size:
                raise ValueError(
                    f"{what}writers has {len(ids)} entries for {owned.size} samples: say of each "
                    f"sample whose it is"
                )
        if bytes_per_token is not None:
            check_number("bytes_per_token", bytes_per_token)
            if not bytes_per_token > 0:
                raise ValueError(f"bytes_per_token {bytes_per_token} is not above 0: give a length")
        return super().__new__(cls, *samples, classes, who, tested, bytes_per_token)

    @property
    def shape(self) -> Any:
        """The shape of one input, a tuple of numbers; of several, a tuple or a dict of shapes."""
        return _shape(self.train.inputs)

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells its training and its test samples, and whose they are, from others."""
        sides = {"train": (self.train, self.writers), "test": (self.test, self.test_writers)}
        return {
            name: short_fingerprint([*samples.tensors, *([] if whose is None else [whose])])
            for name, (samples, whose) in sides.items()
        }

    def check(self, name: str) -> None:
        """Raise a ValueError if its tensors do not fit each other."""
        classes = self.classes
        if classes is not None and (not isinstance(classes, int) or isinstance(classes, bool)):
            raise ValueError(f"dataset {name} has classes {classes!r}: give their number, or None")
        for what, samples in (("training", self.train), ("test", self.test)):
            try:
                samples.check()
            except ValueError as error:
                raise ValueError(f"dataset {name}, {what} samples: {error}") from None
            labels = samples.labels
            if not classes or labels is None:
                continue
            least, most = int(labels.min()), int(labels.max())
            if not 0 <= least <= most < classes:
                raise ValueError(
                    f"dataset {name} has {what} targets from {least} to {most}: with {classes} "
                    f"classes, use 0 to {classes - 1}"
                )
        if _shape(self.test.inputs) != self.shape:
            raise ValueError(
                f"dataset {name} has training inputs {shapes(self.train.inputs)} and test inputs "
                f"{shapes(self.test.inputs)}: give inputs of one shape"
            )
        if self.writers is not None and len(self.writers) != self.train.size:
            raise ValueError(
                f"dataset {name} has {self.train.size} training samples and writers of "
                f"{len(self.writers)}: give one for each"
            )

    def held_out(self, share: float) -> "Dataset":
        """The same task judged on a share of the training samples, which nobody trains on then.

        Which ones is the same for all who ask; test samples are left out.
        """
        kept, judged = held_out(self.train.size, share)
        whose = self.writers
        return self._replace(
            train=self.train.some(kept),
            test=self.train.some(judged),
            writers=None if whose is None else whose[kept],
            test_writers=None if whose is None else whose[judged],
        )

    def reduced(self, train: int, test: int) -> "Dataset":
        """At most so many samples, evenly spread over those there are."""
        kept, judged = (
            torch.arange(min(wanted, samples.size)) * samples.size // wanted
            if wanted < samples.size
            else slice(None)
            for wanted, samples in ((train, self.train), (test, self.test))
        )
        return self._replace(
            train=self.train.some(kept),
            test=self.test.some(judged),
            writers=None if self.writers is None else self.writers[kept],
            test_writers=None if self.test_writers is None else self.test_writers[judged],
        )


def held_out(size: int, share: float) -> tuple[Tensor, Tensor]:
    """Which of so many samples stay, and which are held out: the same for all who ask."""
    count = round(share * size) if 0 < share < 1 else 0
    if not 1 <= count < size:
        raise ValueError(
            f"a share of {share:g} of {size} training samples is no validation set: it must hold "
            f"some and leave some"
        )
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return order[count:].sort().values, order[:count].sort().values


def _samples(given: Any, what: str) -> Samples:
    try:
        return as_samples(given)
    except ValueError as error:
        raise ValueError(f"{what} samples: {error}") from None


def _shape(inputs: Inputs) -> Any:
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape[1:])
    if isinstance(inputs, dict):
        return {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}
    return tuple(tuple(tensor.shape[1:]) for tensor in inputs)
