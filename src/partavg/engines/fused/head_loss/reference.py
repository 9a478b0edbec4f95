"""Cross-entropy in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional as F


def losses_(logits: Tensor, words: Tensor, scale: Tensor, *, all_there: bool = False) -> Tensor:
    """The cross-entropy of words [m, n]; logits [m, n, w] become their gradients times [m] scales.

    Of a negative word both are 0; `all_there` promises that there is none.
    """
    wide = logits.to(scale.dtype)
    place = (words if all_there else words.clamp(min=0))[..., None]
    # log_softmax would take three times as long where there are few words.
    wide -= wide.amax(-1, keepdim=True)
    own = wide.gather(-1, place)
    total = wide.exp_().sum(-1, keepdim=True)
    found, each = total.log() - own, scale[:, None, None]
    if not all_there:
        there = (words >= 0)[..., None]
        found, each = torch.where(there, found, 0), torch.where(there, each, 0)
    wide.mul_(each / total).scatter_add_(-1, place, -each.expand(place.shape))
    logits.copy_(wide)
    return found.squeeze(-1)


def mean_losses(x: Tensor, weight: Tensor, bias: Tensor, words: Tensor, ignored: int) -> Tensor:
    """The losses [m] of x [m, n, i], one worker after another."""
    given = zip(x, weight.to(x.dtype), bias.to(x.dtype), words, strict=True)
    logits = ((F.linear(*own).to(weight.dtype), word) for *own, word in given)
    return torch.stack([F.cross_entropy(*own, ignore_index=ignored) for own in logits])
