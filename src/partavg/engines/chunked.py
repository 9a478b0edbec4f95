"""What the engines share: a few rows at a time through a loss, and back."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.loop import Batch, Gradients
from partavg.engines.model import RowModel

LossOfRows = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""As `RowModel.loss`, with a leading axis of rows in all that goes in and comes out."""

_SMALL = 1 << 21  # elements


class Chunked:
    """An engine that computes the gradients of `chunk` workers at a time."""

    def __init__(self, model: RowModel, loss: LossOfRows, chunk: int) -> None:
        if chunk < 1:
            raise ValueError(f"chunk {chunk} is below 1: use the number of workers for one pass")
        self._model = model
        self._loss = loss
        self._chunk = chunk
        starts, sizes = model.params.starts, model.params.sizes
        self._columns = [slice(a, a + n) for a, n in zip(starts, sizes, strict=True)]

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""
        seeds = batch.keys.tolist()
        for start in range(0, len(params), self._chunk):
            rows = slice(start, start + self._chunk)
            some = Batch(*(field[rows] for field in batch))
            with _seeded(seeds[start], params.device):
                losses, grads = self._differentiate(params[rows], buffers[rows], some)
            yield Gradients(rows, losses, self._pieces(grads))

    def _differentiate(
        self, params: Tensor, buffers: Tensor, batch: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses of the rows and the gradient of each tensor, flat; updates the buffers."""
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
        return losses.detach(), [grad.reshape(len(params), -1) for grad in grads]

    def _pieces(self, grads: list[Tensor]) -> list[tuple[slice, Tensor]]:
        """Small gradients joined, to be stepped in one go; large ones as autograd made them."""
        if sum(grad.numel() for grad in grads) <= _SMALL:
            return [(slice(0, self._model.params.size), torch.cat(grads, 1))]
        return list(zip(self._columns, _owned(grads), strict=True))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generator, for layers that are random but not dropout; then restore it.

    torch.manual_seed would take a millisecond, because it looks for every kind of device.
    """
    cuda = device.type == "cuda"
    generator = torch.cuda.default_generators[device.index] if cuda else torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def _owned(grads: Iterable[Tensor]) -> Iterator[Tensor]:
    """The gradients in memory of their own: autograd may hand out one tensor twice, or expanded."""
    seen: set[int] = set()
    for grad in grads:
        memory = grad.untyped_storage().data_ptr()
        yield grad.clone() if memory in seen else grad.contiguous()
        seen.add(memory)
