"""What the engines share: a few rows at a time through a loss, and back."""

from collections import Counter
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.loop import Batch, Gradients
from partavg.core.seeds import seeded
from partavg.engines.model import RowModel

LossOfRows = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""As `RowModel.loss`, with a leading axis of rows in all that goes in and comes out."""

_MOST_ON_CPU, _MOST_ON_GPU = 1 << 21, 1 << 28  # elements that a solver steps at a time


class Chunked:
    """An engine that computes the gradients of `chunk` workers at a time."""

    def __init__(self, model: RowModel, loss: LossOfRows, chunk: int) -> None:
        if chunk < 1:
            raise ValueError(f"chunk {chunk} is below 1: use the number of workers for one pass")
        self._model = model
        self._loss = loss
        self._chunk = chunk

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""
        seeds = batch.keys.tolist()
        for start in range(0, len(params), self._chunk):
            rows = slice(start, start + self._chunk)
            some = Batch(*(field[rows] for field in batch))
            with seeded(seeds[start], params.device):  # for layers random but not by dropout
                losses, grads = self._differentiate(params[rows], buffers[rows], some)
            yield Gradients(rows, losses, self._pieces(grads))

    def _differentiate(
        self, params: Tensor, buffers: Tensor, batch: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses of the rows and the gradient of each tensor; updates the buffers."""
        leaves = {
            k: v.detach().requires_grad_() for k, v in self._model.params.views(params).items()
        }
        before = self._model.buffers.views(buffers)
        losses, after = self._loss(leaves, before, *batch)
        grads = torch.autograd.grad(
            losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        for name, buffer in after.items():
            before[name].copy_(buffer)
        return losses.detach(), list(grads)

    def _pieces(self, grads: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        """The gradients in memory of their own, in pieces that a solver can step in one go.

        Small gradients are joined. Large ones are cut along their channels and let go one by one,
        so that what is copied fits a processor's cache. A copy it must be where autograd made
        one tensor for two parameters, expanded it from a smaller one, or laid it out otherwise.
        """
        rows = len(grads[0])
        most = _MOST_ON_CPU if grads[0].is_cpu else _MOST_ON_GPU
        if sum(grad.numel() for grad in grads) <= most:
            joined = torch.cat([grad.reshape(rows, -1) for grad in grads], 1)
            yield slice(0, self._model.params.size), joined
            return
        owners = Counter(grad.untyped_storage().data_ptr() for grad in grads)
        for first in self._model.params.starts:
            grad = grads.pop(0).unsqueeze(
                -1
            )  # a scalar has no channels, but may be cut all the same
            shared = owners[grad.untyped_storage().data_ptr()] > 1
            count = max(1, most * grad.shape[1] // max(1, grad.numel()))
            for block in torch.split(grad, count, 1):
                piece = (block.clone() if shared else block.contiguous()).reshape(rows, -1)
                yield slice(first, first := first + piece.shape[1]), piece
