"""nn.Embedding for all workers at once."""

from typing import Any

import torch
from torch import Tensor

from partavg.engines.fused.rows import Rows

_FEW = 2048  # words for which a product adds gradients up faster than sorting does
_MOST = 1 << 29  # numbers of its first factor at a time: 1 GiB in bf16


def covers(layer: Any) -> bool:
    """Whether its gradient is that of any other table."""
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def run(layer: Any, rows: Rows, name: str, words: Tensor) -> Tensor:
    """The vectors of words [m, n, …]."""
    weight, padding = rows.tensor_of(name, "weight"), layer.padding_idx
    found: Tensor = Lookup.apply(  # type: ignore[no-untyped-call]
        weight, words.flatten(1), -1 if padding is None else padding, rows.compute
    )
    return found.view(*words.shape, -1)


class Lookup(torch.autograd.Function):
    """The vectors of words [m, n] in tables [m, words, e], in some dtype.

    Gradients of one word are always added up in the same order; the padding word has none.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, words: Tensor, padding: int, dtype: torch.dtype
    ) -> Tensor:
        """The vectors."""
        ctx.save_for_backward(words)
        ctx.padding, ctx.shape, ctx.dtype = padding, weight.shape, weight.dtype
        worker = torch.arange(len(words), device=words.device)[:, None]
        return weight[worker, words].to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The sums of the gradients of each word."""
        (words,) = ctx.saved_tensors
        workers, height, _ = ctx.shape
        if ctx.padding >= 0:
            grad = grad.masked_fill((words == ctx.padding)[..., None], 0)
        if grad.is_cuda and height <= _FEW and grad.dtype != ctx.dtype:
            return _by_products(words, grad, height, ctx.dtype), None, None, None
        first = height * torch.arange(workers, device=words.device)[:, None]
        numbers = (words + first).flatten()
        found: Tensor = torch.ops.aten.embedding_dense_backward(
            grad.flatten(0, 1).to(ctx.dtype), numbers, workers * height, -1, False
        )
        return found.view(ctx.shape), None, None, None


def _by_products(words: Tensor, grad: Tensor, height: int, dtype: torch.dtype) -> Tensor:
    """The sums [m, words, e] of gradients [m, n, e] of words [m, n], a few workers at a time."""
    place = torch.arange(height, device=words.device)[:, None]
    each = max(1, _MOST // (height * words.shape[1]))
    pairs = zip(torch.split(words, each), torch.split(grad, each), strict=True)
    found = [
        torch.bmm((some[:, None] == place).to(own.dtype), own, out_dtype=dtype)
        for some, own in pairs
    ]
    return found[0] if len(found) == 1 else torch.cat(found)
