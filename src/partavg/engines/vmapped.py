"""Many workers in one pass: torch.func.vmap over rows, a chunk at a time."""

from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from partavg.core.loop import Batch
from partavg.engines.model import RowModel
from partavg.engines.rows import compute


class Vmapped:
    """Computes the gradients of `chunk` workers at once; smaller chunks need less memory."""

    def __init__(self, model: RowModel, chunk: int) -> None:
        if chunk < 1:
            raise ValueError(f"chunk {chunk} is below 1: use the number of workers for one pass")
        self._model = model
        self._chunk = chunk
        self._loss = vmap(model.loss, randomness="different")

    def __call__(
        self,
        params: Float[Tensor, "m d"],
        buffers: Float[Tensor, "m b"],
        batch: Batch,
        grads: Float[Tensor, "m d"],
    ) -> Float[Tensor, "m"]:
        """Return the losses, write the gradients into `grads`, update `buffers` in place."""
        starts = range(0, len(params), self._chunk)
        chunks = [slice(start, start + self._chunk) for start in starts]
        return compute(self._model, self._loss, chunks, params, buffers, batch, grads)
