"""One worker after another: the reference, and right for large models on a CPU."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.inputs import Inputs, call
from partavg.core.loop import Batch, Gradients
from partavg.core.seeds import OTHERS, seeded
from partavg.engines import dropout
from partavg.engines.dropout import KeyedDropout
from partavg.engines.examine import check_loss
from partavg.engines.model import RowModel
from partavg.engines.pieces import pieces


class Looped:
    """Computes each worker's gradient in turn, as any training loop does.

    What a module draws by itself, from torch or from the `others` (Python's random, numpy), is
    seeded for every worker and step.
    """

    def __init__(self, model: RowModel, others: Iterable[str] = OTHERS) -> None:
        self._model = model
        self._others = tuple(others)

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""
        seeds = batch.keys.tolist()
        for row in range(len(params)):
            # The seed is for layers that are random but not by dropout.
            with seeded(seeds[row], params.device, self._others):
                loss, grads = one_worker(self._model, params[row], buffers[row], *batch.one(row))
            yield Gradients(slice(row, row + 1), loss, pieces(grads, self._model.params))


def one_worker(
    model: RowModel,
    params: Float[Tensor, "d"],
    buffers: Float[Tensor, "b"],
    inputs: Inputs,
    targets: Inputs,
    key: Int[Tensor, ""],
) -> tuple[Float[Tensor, "1"], list[Tensor]]:
    """The loss and the gradients [1, …] of one worker; updates its buffers in place."""
    with model.holding(params, buffers) as (module, parameters):
        with KeyedDropout(key):
            loss = model.criterion(call(module, inputs), targets)
        check_loss(loss)
        with dropout.refused(module):
            grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.detach().view(1), [grad.to_dense()[None] for grad in grads]
