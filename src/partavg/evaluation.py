"""Loss and scores of a model on samples."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from partavg.core import inputs as trees
from partavg.core.arguments import check_kind
from partavg.core.inputs import Inputs
from partavg.data.convert import as_samples
from partavg.data.samples import Samples, as_seen, shapes, widened
from partavg.engines.model import Loss
from partavg.registry import mismatch, table
from partavg.scores.classes import accuracy
from partavg.scores.mean_loss import MeanLoss
from partavg.scores.score import SHARE, Score, add, on_host
from partavg.sentences import reason, shown
from partavg.torch_internals import batch_norms

_BATCH = 500
_NUMBERS = 1 << 22  # of a batch on a GPU, which is idle between small ones

Transform = Callable[[Any], Any]
"""From inputs as they are stored to what a model sees."""

Asked = Iterable[Any] | Mapping[str, Any]
"""Metrics: names, functions of (outputs, targets) that return (sum, count), or `Metric`s."""

ACCURACY = Score("accuracy", accuracy, required=False, within=SHARE)
"""What is measured wherever there are classes."""


def unchanged(inputs: Any) -> Any:
    """The Transform of inputs that are stored as a model sees them."""
    return inputs


class Evaluation(NamedTuple):
    """The mean loss and the metrics that could be measured, by name."""

    loss: float
    metrics: Mapping[str, float]

    @property
    def accuracy(self) -> float | None:
        """The share of targets classified rightly; None where there are no classes."""
        return self.metrics.get("accuracy")


class Counts(NamedTuple):
    """What an evaluation adds up: sums and counts of the loss and of scores."""

    loss: tuple[Tensor, Tensor] | None
    """None where there were no samples."""
    scores: Mapping[str, tuple[Tensor, Tensor] | None]
    """None where a score cannot be measured."""

    @classmethod
    def total(cls, some: "Iterable[Counts]") -> "Counts":
        """The counts of several sets of samples together; empty ones say nothing."""
        known = [counts for counts in some if counts.loss]
        if not known:
            return cls(None, {})
        first, *others = known
        loss, scores = first.loss, dict(first.scores)
        for other in others:
            loss = on_host(add(loss, other.loss))
            scores = {key: on_host(add(pair, other.scores[key])) for key, pair in scores.items()}
        return cls(loss, scores)

    def evaluation(self, scores: Iterable[Score]) -> Evaluation:
        """The mean loss and the values of the scores."""
        if self.loss is None or not float(self.loss[1]):
            raise ValueError(
                "there is nothing to evaluate on: give samples, some with a target that counts"
            )
        found = {
            score.key: score.value(*pair) for score in scores if (pair := self.scores[score.key])
        }
        total, count = map(float, self.loss)
        return Evaluation(total / count, {k: v for k, v in found.items() if v is not None})


def evaluate(
    module: nn.Module,
    loss: Loss,
    samples: Any,
    transform: Transform = unchanged,
    *,
    metrics: Asked = (),
) -> Evaluation:
    """Evaluate a model on inputs and targets; it is left in evaluation mode.

    The loss is the mean over samples or, if targets are integers, over those that are not ignored,
    whether the loss adds up a batch or takes its mean. Accuracy is measured where there are
    classes, `metrics` must be measurable. Samples in host memory go to the model's device batch by
    batch.

    >>> always_first = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(always_first.weight)
    >>> samples = torch.ones(4, 1), torch.tensor([0, 0, 0, 1])
    >>> evaluate(always_first, nn.functional.cross_entropy, samples).accuracy
    0.75
    """
    check_kind("module", module, nn.Module, "a torch.nn.Module")
    for what, function, given in (("loss", loss, 2), ("transform", transform, 1)):
        if isinstance(function, type):
            raise ValueError(f"{what} {function.__name__} is a class: call it, to get one")
        if problem := mismatch(function, *[None] * given):
            raise ValueError(f"{what} {shown(function)} cannot be called so: {problem}")
    scores = scores_of(metrics)
    known = as_samples(samples, dtype=next((p.dtype for p in module.parameters()), None))
    return count(module, MeanLoss(loss), known, transform, scores).evaluation(scores)


def scores_of(metrics: Asked = ()) -> list[Score]:
    """The scores that are asked for, and accuracy where it can be measured."""
    if not isinstance(metrics, list | tuple | Mapping):
        raise ValueError(f"metrics {shown(metrics)} are no list: give names or functions in one")
    asked: list[Any] = list(metrics)
    if not all(isinstance(metric, Score) for metric in asked):
        names: Any = table("metric")
        asked = [metric.score for metric in names.asked(metrics)]
    default = [] if any(score.key == ACCURACY.key for score in asked) else [ACCURACY]
    return [*default, *asked]


@torch.no_grad()
def count(
    module: nn.Module,
    loss: MeanLoss,
    samples: Samples,
    transform: Transform,
    scores: Sequence[Score],
) -> Counts:
    """What some samples add to an evaluation."""
    module.eval()
    summed: dict[str, Any] = {}
    seen = as_seen(samples)
    for raw, stored in _batches(_device(module, samples.inputs), *samples):
        inputs = seen(raw, None)
        targets: Any = widened(stored)
        with _computing(inputs, targets):
            loss.find_out(partial(_some, module, transform, inputs, targets))
            outputs = trees.call(module, transform(inputs))
            lost = loss.of(outputs, targets)
        found = {"": lost, **{score.key: score.of(outputs, targets) for score in scores}}
        summed = {key: add(summed[key], found[key]) for key in found} if summed else found
    pairs = {key: on_host(pair) for key, pair in summed.items()}
    return Counts(pairs.pop("", None), pairs)


@contextmanager
def _computing(inputs: Inputs, targets: Inputs) -> Iterator[None]:
    """Say of which samples a model or a loss cannot be computed."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(
            f"the model and the loss cannot be computed on inputs {shapes(inputs)} and targets "
            f"{shapes(targets)}: {reason(error)}"
        ) from error


@torch.no_grad()
def recompute_statistics_(
    module: nn.Module,
    inputs: Inputs,
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
    for (batch,) in _batches(_device(module, inputs), inputs):
        trees.call(module, transform(batch))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _some(
    module: nn.Module, transform: Transform, inputs: Inputs, targets: Inputs, most: int, times: int
) -> tuple[Any, Inputs]:
    """Outputs and targets of samples at equal distances in a batch, all of them so many times."""
    apart = max(1, trees.count(targets) // most)

    def some(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[::apart]] * times)

    return trees.call(module, transform(trees.each(some, inputs))), trees.each(some, targets)


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
