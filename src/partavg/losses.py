"""Losses by name: each a function of outputs and targets; its options are keyword-only."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from partavg.registry import Names


def cross_entropy(
    outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, ignore_index: int = -100
) -> Tensor:
    """Of classes; the outputs are logits, their second axis the classes."""
    return F.cross_entropy(
        outputs, targets, label_smoothing=label_smoothing, ignore_index=ignore_index
    )


def next_token(outputs: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Of language models, in nats a token: logits [n, tokens, words], words [n, tokens]."""
    return F.cross_entropy(
        outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1), ignore_index=ignore_index
    )


def nll(outputs: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Of classes; the outputs are logarithms of probabilities."""
    return F.nll_loss(outputs, targets, ignore_index=ignore_index)


def bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of labels that are 0 or 1, any number of them; the outputs are logits."""
    return F.binary_cross_entropy_with_logits(outputs, _alike(outputs, targets))


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of the squared errors.

    >>> import torch
    >>> mse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(2.)
    """
    return F.mse_loss(outputs, _alike(outputs, targets))


def l1(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of the absolute errors."""
    return F.l1_loss(outputs, _alike(outputs, targets))


def huber(outputs: Tensor, targets: Tensor, *, delta: float = 1.0) -> Tensor:
    """Squared below `delta`, linear above."""
    return F.huber_loss(outputs, _alike(outputs, targets), delta=delta)


def _alike(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets of the type of the outputs; torch would spread other shapes over each other."""
    if outputs.shape != targets.shape:
        raise ValueError(
            f"outputs {list(outputs.shape)} and targets {list(targets.shape)} of a batch differ in "
            f"shape: give as many outputs as targets, squeeze(-1) drops an axis of 1"
        )
    return targets.to(outputs.dtype)


def with_options(loss: Callable[..., Any], **options: Any) -> Any:
    """A loss whose options are given: a class is made, a function gets them at every call."""
    if isinstance(loss, type):
        return loss(**options)
    return partial(loss, **options) if options else loss


def of_torch_or_ours(loss: Any) -> bool:
    """Whether a loss is known to do the same at every call; one of a user's own may count them."""
    if isinstance(loss, partial):
        loss = loss.func
    owner = type(loss) if isinstance(loss, nn.Module) else loss
    return str(getattr(owner, "__module__", "")).partition(".")[0] in ("torch", "partavg")


LOSSES: Names[Callable[..., Any]] = Names(
    "loss",
    {
        "bce_with_logits": bce_with_logits,
        "cross_entropy": cross_entropy,
        "huber": huber,
        "l1": l1,
        "mse": mse,
        "next_token": next_token,
        "nll": nll,
    },
)
