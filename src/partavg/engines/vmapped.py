"""Many workers in one pass: torch.func.vmap over rows, a chunk at a time."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from partavg.core.loop import Batch, Gradients
from partavg.engines.examine import ONLY_LOOPED
from partavg.engines.model import RowModel
from partavg.engines.pieces import pieces


class Vmapped:
    """Computes the gradients of `chunk` workers at once; smaller chunks need less memory."""

    def __init__(self, model: RowModel, chunk: int) -> None:
        if chunk < 1:
            raise ValueError(f"chunk {chunk} is below 1: use the number of workers for one pass")
        self._model = model
        self._chunk = chunk
        self._losses = vmap(model.loss)

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""
        for start in range(0, len(params), self._chunk):
            rows = slice(start, start + self._chunk)
            some = batch.some(rows)
            losses, grads = self._differentiate(params[rows], buffers[rows], some)
            yield Gradients(rows, losses, pieces(grads, self._model.params))

    def _differentiate(
        self, params: Tensor, buffers: Tensor, batch: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses of the rows and the gradient of each tensor; updates the buffers."""
        views = self._model.params.views(params)
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        before = self._model.buffers.views(buffers)
        try:
            # vmap has no rule for flash attention: it would take worker after worker, and warn.
            with sdpa_kernel(SDPBackend.MATH):
                losses, after = self._losses(leaves, before, *batch)
        except RuntimeError as error:
            if "randomness" in str(error):  # vmap's own word: it lets nobody draw
                raise ValueError(f"the model draws random numbers {ONLY_LOOPED}") from error
            raise
        # Rows do not depend on each other: the gradient of the sum is that of each of them.
        grads = torch.autograd.grad(
            losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        for name, buffer in after.items():
            before[name].copy_(buffer.detach())
        return losses.detach(), list(grads)
