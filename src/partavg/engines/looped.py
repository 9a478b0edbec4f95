"""One worker after another: the reference, and right for large models on a CPU."""

from torch import Tensor

from partavg.engines.chunked import Chunked
from partavg.engines.model import RowModel


def looped(model: RowModel) -> Chunked:
    """An engine that computes each worker's gradient in turn."""

    def loss(
        params: dict[str, Tensor], buffers: dict[str, Tensor], *batch: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # Squeezing is free, forward and backward; selecting row 0 would copy every gradient.
        value, after = model.loss(
            {name: tensor.squeeze(0) for name, tensor in params.items()},
            {name: tensor.squeeze(0) for name, tensor in buffers.items()},
            *(tensor.squeeze(0) for tensor in batch),
        )
        return value.unsqueeze(0), {k: v.unsqueeze(0) for k, v in after.items()}

    return Chunked(model, loss, chunk=1)
