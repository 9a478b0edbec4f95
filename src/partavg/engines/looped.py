"""One worker after another: the reference, and right for large models on a CPU."""

from jaxtyping import Float
from torch import Tensor

from partavg.core.loop import Batch
from partavg.engines.model import RowModel
from partavg.engines.rows import compute


class Looped:
    """Computes each worker's gradient in turn."""

    def __init__(self, model: RowModel) -> None:
        self._model = model

    def __call__(
        self,
        params: Float[Tensor, "m d"],
        buffers: Float[Tensor, "m b"],
        batch: Batch,
        grads: Float[Tensor, "m d"],
    ) -> Float[Tensor, "m"]:
        """Return the losses, write the gradients into `grads`, update `buffers` in place."""
        rows = range(len(params))
        return compute(self._model, self._model.loss, rows, params, buffers, batch, grads)
