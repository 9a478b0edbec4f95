"""The last linear layer of a language model and its loss, a few workers at a time."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.head_loss import reference
from partavg.engines.fused.linear.operation import cast, product_into
from partavg.engines.fused.rows import Rows
from partavg.losses import cross_entropy, next_token

_MOST = 1 << 29  # logits at a time: 1 GiB in bf16


class Criterion(NamedTuple):
    """A loss that is the mean cross-entropy of words or classes, but for those to ignore."""

    ignored: int
    of_samples: bool = False
    """Whether it takes one class for each sample, not words one after another."""

    @classmethod
    def of(cls, loss: Any) -> "Criterion | None":
        """The same loss, if it is known to be one."""
        if type(loss) is nn.CrossEntropyLoss:
            plain = loss.weight is None and loss.reduction == "mean" and not loss.label_smoothing
            return cls(loss.ignore_index, of_samples=True) if plain else None
        options = {}
        if isinstance(loss, partial) and not loss.args:
            loss, options = loss.func, loss.keywords
        if loss not in _KNOWN or not options.keys() <= {"ignore_index", "label_smoothing"}:
            return None
        if options.get("label_smoothing"):  # recipes name all options, with what they are at first
            return None
        return cls(options.get("ignore_index", -100), of_samples=loss is not next_token)

    def takes(self, targets: Any) -> bool:
        """Whether these targets [m, n, …] are words or classes that it knows."""
        if not isinstance(targets, Tensor):
            return False
        if not self.of_samples:
            return True
        return _one_each(targets) and dispatch.ends_in_loss(device_of(targets))

    def ignored_in(self, targets: Tensor, classes: int) -> int | None:
        """The class that is to be ignored; None if a CPU sees that all count.

        Classes that there are not are refused, as torch does; a GPU is not asked for words.
        """
        if not targets.is_cuda and all_classes(targets, classes, self.ignored):
            return None
        if self.of_samples:
            _check_classes(targets, classes, self.ignored)
        return self.ignored

    def of_outputs(self, outputs: Any, classes: Any) -> Tensor | None:
        """The losses [m] of outputs [m, n, c] and classes [m, n]; None for whatever else.

        The same numbers as torch.func.vmap of the loss gives, which takes more operations and, when
        it is called first, a second to import what it does not need.
        """
        if not (self.of_samples and isinstance(outputs, Tensor) and isinstance(classes, Tensor)):
            return None
        if not (outputs.ndim == 3 and _one_each(classes) and outputs.shape[:2] == classes.shape):
            return None
        given = outputs.flatten(0, 1), classes.flatten()
        each = F.cross_entropy(*given, ignore_index=self.ignored, reduction="none")
        return each.view(classes.shape).sum(1) / (classes != self.ignored).sum(1)


def _one_each(targets: Tensor) -> bool:
    """Whether there is a class for each sample of each worker."""
    return targets.ndim == 2 and targets.dtype == torch.int64


_KNOWN = (next_token, cross_entropy, F.cross_entropy)


def run(rows: Rows, name: str, x: Tensor, words: Tensor, ignored: int | None) -> Tensor:
    """The losses [m] of what a linear layer makes of x [m, n, t, i]; they are to be added up."""
    own = rows.tensor_of(name, "weight"), rows.maybe(name, "bias")
    return losses(rows.cast(x), *own, words, ignored, rows.gradient_of(name, "weight"), summed=True)


def all_classes(found: Tensor, classes: int, ignored: int) -> bool:
    """Whether each of them is a class, and none is to be ignored."""
    if not found.numel():
        return False
    low, high = map(int, torch.aminmax(found))
    return low >= 0 and high < classes and not low <= ignored <= high


def _check_classes(found: Tensor, classes: int, ignored: int) -> None:
    """Refuse classes that there are not, as torch does."""
    wrong = ((found < 0) | (found >= classes)) & (found != ignored)
    if bool(wrong.any()):
        raise IndexError(f"Target {int(found[wrong][0])} is out of bounds.")


def losses(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    words: Tensor,
    ignored: int | None,
    place: Tensor | None = None,
    *,
    summed: bool = False,
) -> Tensor:
    """The mean cross-entropy [m] of words [m, …] given x [m, …, i], weights and biases.

    Where no word is `ignored`, that is None: each is known to be one of those that there are.
    `summed` promises that the losses are but added up, so that their own gradient is 1.
    """
    flat = x.reshape(len(x), -1, x.shape[-1])
    found: Tensor = HeadLoss.apply(  # type: ignore[no-untyped-call]
        flat, weight, bias, words.flatten(1), ignored, place, summed
    )
    return found


class HeadLoss(torch.autograd.Function):
    """Losses of x [m, n, i]; their gradients are computed at once, while logits are at hand."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        words: Tensor,
        ignored: int | None,
        place: Tensor | None,
        summed: bool,
    ) -> Tensor:
        """The losses, in the weights' dtype."""
        low = cast(weight, x.dtype)
        words, scale, wrong = _looked_at(words, weight, ignored)
        dx = torch.empty_like(x)
        dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
        dw = dw if place is None else place
        db = None if bias is None else torch.zeros_like(bias)
        found = x.new_empty(words.shape, dtype=weight.dtype)
        workers, count = words.shape
        each = weight.shape[1]
        most = max(1, min(count, _MOST // each))
        for some in map(slice, *_cut(workers, max(1, _MOST // (each * count)))):
            for part in map(slice, *_cut(count, most)):
                own = x[some, part]
                logits = _logits(own, low[some], None if bias is None else bias[some])
                own_words = words[some, part]
                found[some, part] = _losses_(
                    logits, own_words, scale[some], all_there=wrong is None
                )
                torch.bmm(logits, low[some], out=dx[some, part])
                if part.start == 0:
                    _copied(dw[some], product_into(dw[some], logits, own, weight.dtype))
                else:
                    dw[some] += product_into(None, logits, own, weight.dtype)
                if db is not None:
                    db[some] += logits.sum(1, dtype=db.dtype)
        ctx.save_for_backward(dx, dw, db)
        ctx.summed = summed
        if wrong is not None:
            found.masked_fill_(wrong, torch.nan)
        return found.sum(1).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """What was computed."""
        dx, dw, db = ctx.saved_tensors
        if not ctx.summed:
            dx, dw = dx * grad[:, None, None].to(dx.dtype), dw * grad[:, None, None]
            db = None if db is None else db * grad[:, None]
        return dx, dw, db, None, None, None, None


def _looked_at(
    words: Tensor, weight: Tensor, ignored: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Words, -1 for those that do not count; one over how many do; which are wrong, if it may be.

    Of those torch says so; a GPU is not asked, but the loss is NaN.
    """
    if ignored is None:
        return words, weight.new_full((len(words),), 1 / words.shape[1]), None
    counted = words != ignored
    known = (words >= 0) & (words < weight.shape[1])
    scale = counted.sum(1).to(weight.dtype).reciprocal()
    return torch.where(counted & known, words, -1), scale, counted & ~known


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What the layer makes of x [m, n, i]: [m, n, w], if words are few in the memory of [m, w, n].

    What is done along the words is then done for many samples at once.
    """
    if dispatch.puts_words_first(weight.shape[1], device_of(x)):
        logits = torch.bmm(weight, x.transpose(1, 2)).transpose(1, 2)
    else:
        logits = torch.bmm(x, weight.transpose(1, 2))
    return logits if bias is None else logits.add_(bias[:, None].to(x.dtype))


def _losses_(logits: Tensor, words: Tensor, scale: Tensor, *, all_there: bool) -> Tensor:
    """The loss of each word [m, n], 0 where it is negative; logits become their gradients."""
    if not dispatch.crosses_by_triton(logits.dtype, device_of(logits)):
        return reference.losses_(logits, words, scale, all_there=all_there)
    from partavg.engines.fused.head_loss.cross_entropy import losses_

    return losses_(logits, words, scale)


def _cut(length: int, size: int) -> tuple[range, list[int]]:
    """Where pieces begin and end."""
    starts = range(0, length, size)
    return starts, [min(start + size, length) for start in starts]


def _copied(place: Tensor, found: Tensor) -> None:
    if found.data_ptr() != place.data_ptr():
        place.copy_(found)
