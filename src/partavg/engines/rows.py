"""What the engines share: losses and gradients of a selection of rows at a time."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.loop import Batch
from partavg.engines.model import RowModel


def compute(
    model: RowModel,
    loss: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    selections: Sequence[int | slice],
    params: Float[Tensor, "m d"],
    buffers: Float[Tensor, "m b"],
    batch: Batch,
    grads: Float[Tensor, "m d"],
) -> Float[Tensor, "m"]:
    """Return the losses, write the gradients into `grads`, update `buffers` in place.

    `loss` takes what `RowModel.loss` takes, for the rows selected. Gradients of one selection at
    a time exist beside `grads`.
    """
    losses = torch.empty(len(params), dtype=params.dtype, device=params.device)
    seeds = batch.keys.tolist()
    with torch.random.fork_rng([params.device] if params.is_cuda else []):
        for rows in selections:
            # For layers that are random but not dropout, whose masks come from the key.
            torch.manual_seed(seeds[rows if isinstance(rows, int) else rows.start])
            leaves = {
                name: view.detach().requires_grad_()
                for name, view in model.params.views(params[rows]).items()
            }
            old = model.buffers.views(buffers[rows])
            values, new = loss(
                leaves, old, batch.inputs[rows], batch.targets[rows], batch.keys[rows]
            )
            losses[rows] = values.detach()
            found = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True)
            for view, grad in zip(model.params.views(grads[rows]).values(), found, strict=True):
                view.zero_() if grad is None else view.copy_(grad)
            for name, buffer in new.items():
                old[name].copy_(buffer)
    return losses
