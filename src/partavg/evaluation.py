"""Loss and accuracy of a model on samples."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from partavg.core import inputs as trees
from partavg.core.inputs import Inputs
from partavg.data.convert import as_samples
from partavg.data.samples import Samples
from partavg.engines.model import Loss
from partavg.torch_internals import batch_norms

_BATCH = 500
_NUMBERS = 1 << 22  # of a batch on a GPU, which is idle between small ones

Transform = Callable[[Any], Any]
"""From inputs as they are stored to what a model sees."""


def unchanged(inputs: Any) -> Any:
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
    samples: Any,
    transform: Transform = unchanged,
) -> Evaluation:
    """Evaluate a model on inputs and targets; it is left in evaluation mode.

    >>> always_first = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(always_first.weight)
    >>> samples = torch.ones(4, 1), torch.tensor([0, 0, 0, 1])
    >>> evaluate(always_first, nn.functional.cross_entropy, samples).accuracy
    0.75
    """
    known = as_samples(samples, dtype=next((p.dtype for p in module.parameters()), None))
    return count(module, loss, known, transform).evaluation


@torch.no_grad()
def count(module: nn.Module, loss: Loss, samples: Samples, transform: Transform) -> Counts:
    """What some samples add to an evaluation."""
    module.eval()
    device = _device(module, samples.inputs)
    total = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    judged = 0
    for inputs, targets in _batches(device, *samples):
        outputs = trees.call(module, transform(inputs))
        size = trees.count(targets)
        total += torch.as_tensor(loss(outputs, targets)).double().sum() * size
        if not (isinstance(targets, Tensor) and isinstance(outputs, Tensor)):
            continue
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            right += (outputs.argmax(1) == targets).sum()
            judged += targets.numel()
    return Counts(float(total), samples.size, int(right), judged)


@torch.no_grad()
def recompute_statistics_(
    module: nn.Module, inputs: Inputs, transform: Transform = unchanged
) -> None:
    """Replace BatchNorm's running statistics by their mean over batches of the inputs."""
    norms: list[Any] = [norm for norm in module.modules() if isinstance(norm, batch_norms())]
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
    for (batch,) in _batches(_device(module, inputs), inputs):
        trees.call(module, transform(batch))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _batches(device: torch.device, inputs: Inputs, *others: Inputs) -> Iterator[tuple[Any, ...]]:
    """Equal batches, so that none is left with the one sample that BatchNorm refuses.

    Those of samples that are elsewhere come to the device one by one.
    """
    samples = trees.count(inputs)
    batches = -(-samples // (_size(inputs) if device.type == "cuda" else _BATCH))
    each, more = divmod(samples, batches) if batches else (0, 0)
    start = 0
    for place in range(batches):
        stop = start + each + (place < more)
        yield tuple(_cut(tree, slice(start, stop), device) for tree in (inputs, *others))
        start = stop


def _cut(tree: Inputs, some: slice, device: torch.device) -> Inputs:
    return trees.each(lambda tensor: tensor[some].to(device), tree)


def _size(inputs: Inputs) -> int:
    """Samples of a batch on a GPU: more of small ones."""
    numbers = sum(tensor[:1].numel() for tensor in trees.tensors(inputs))
    return max(32, min(4 * _BATCH, _NUMBERS // max(1, numbers)))


def _device(module: nn.Module, inputs: Inputs) -> torch.device:
    """Where a model computes: where its parameters are or, if it has none, where inputs are."""
    own = next(chain(module.parameters(), module.buffers()), None)
    return (trees.tensors(inputs)[0] if own is None else own).device
