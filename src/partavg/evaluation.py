"""Loss and accuracy of a model on samples."""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from partavg.engines.model import Loss
from partavg.torch_internals import batch_norms

_BATCH = 500
_NUMBERS = 1 << 22  # of a batch on a GPU, which is idle between small ones

Transform = Callable[[Tensor], Tensor]
"""From inputs as they are stored to what a model sees."""


def unchanged(inputs: Tensor) -> Tensor:
    """The Transform of inputs that are stored as a model sees them."""
    return inputs


class Evaluation(NamedTuple):
    """Mean loss, and the share of targets classified rightly (None where there are no classes)."""

    loss: float
    accuracy: float | None


class Counts(NamedTuple):
    """What an evaluation adds up."""

    loss: float
    samples: int
    right: int
    judged: int

    @classmethod
    def total(cls, some: "Iterable[Counts]") -> "Counts":
        """The counts of several sets of samples together."""
        return cls(*map(sum, zip(*some, strict=True)))

    @property
    def evaluation(self) -> Evaluation:
        """The mean loss and the accuracy."""
        accuracy = self.right / self.judged if self.judged else None
        return Evaluation(self.loss / self.samples, accuracy)


def evaluate(
    module: nn.Module,
    loss: Loss,
    samples: tuple[Tensor, Tensor],
    transform: Transform = unchanged,
) -> Evaluation:
    """Evaluate a model on inputs and targets; it is left in evaluation mode.

    >>> always_first = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(always_first.weight)
    >>> samples = torch.ones(4, 1), torch.tensor([0, 0, 0, 1])
    >>> evaluate(always_first, nn.functional.cross_entropy, samples).accuracy
    0.75
    """
    return count(module, loss, samples, transform).evaluation


@torch.no_grad()
def count(
    module: nn.Module, loss: Loss, samples: tuple[Tensor, Tensor], transform: Transform
) -> Counts:
    """What some samples add to an evaluation."""
    module.eval()
    device = samples[0].device
    total = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    judged = 0
    for inputs, targets in _batches(*samples):
        outputs = module(transform(inputs))
        total += torch.as_tensor(loss(outputs, targets)).double().sum() * len(inputs)
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            right += (outputs.argmax(1) == targets).sum()
            judged += targets.numel()
    return Counts(float(total), len(samples[0]), int(right), judged)


@torch.no_grad()
def recompute_statistics_(
    module: nn.Module,
    inputs: Tensor,
    transform: Transform = unchanged,
    resting: Container[str] = (),
) -> None:
    """Replace BatchNorm's running statistics by their mean over batches of the inputs.

    Layers that are `resting`, by their names, keep theirs: they were in evaluation mode all along.
    """
    norms: list[Any] = [
        norm
        for name, norm in module.named_modules()
        if isinstance(norm, batch_norms()) and name not in resting
    ]
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
    for (batch,) in _batches(inputs):
        module(transform(batch))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _batches(inputs: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Equal batches, so that none is left with the one sample that BatchNorm refuses."""
    size = _size(inputs) if inputs.is_cuda else _BATCH
    count = -(-len(inputs) // size)
    cut = (torch.tensor_split(tensor, count) for tensor in (inputs, *others)) if count else ()
    return zip(*cut, strict=True)


def _size(inputs: Tensor) -> int:
    """Samples of a batch on a GPU: more of small ones."""
    return max(32, min(4 * _BATCH, _NUMBERS // max(1, inputs[:1].numel())))
