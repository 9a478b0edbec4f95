"""All workers in one pass, layer by layer, with a worker axis in front of every tensor."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap
from torch.fx.node import map_aggregate

from partavg.core.loop import Batch, Gradients
from partavg.engines.fused import dispatch
from partavg.engines.fused.cuda_graph import Recorded
from partavg.engines.fused.head_loss import operation as head_loss
from partavg.engines.fused.head_loss.operation import Criterion
from partavg.engines.fused.own_loss import counts_calls
from partavg.engines.fused.precision import Exactness, Precision, cast, compute_dtype
from partavg.engines.fused.program import Program, Uncovered
from partavg.engines.fused.replay import Replayed
from partavg.engines.fused.rows import Rows
from partavg.engines.model import RowModel
from partavg.engines.pieces import columns, pieces
from partavg.kernels.backend import lacks, uses_triton
from partavg.kernels.launch import compiling_ahead
from partavg.kernels.streams import (
    each_on_own_stream,
    wait_for_side_stream,
    without_side_stream,
)
from partavg.losses import of_torch_or_ours
from partavg.sentences import shown


class Fused:
    """Computes the gradients of `chunk` workers at once; smaller chunks need less memory.

    So do transformers that `recompute` activations, at the price of a second forward pass. The
    module is traced once and run layer by layer on activations of all workers. Raises
    Uncovered where it has a layer that the engine does not know.
    """

    def __init__(
        self,
        model: RowModel,
        chunk: int,
        precision: Precision = "fp32",
        *,
        deterministic: bool = False,
        recompute: bool = False,
    ) -> None:
        if chunk < 1:
            raise ValueError(f"chunk {chunk} is below 1: use the number of workers for one pass")
        self._model = model
        self._chunk = chunk
        self._device = model.start()[0].device
        if problem := lacks(self._device):
            raise Uncovered(problem)
        if model.dtype not in (torch.float32, torch.float64):
            raise Uncovered(
                f"parameters of {model.dtype} are not covered, only float32 and float64"
            )
        self._compute = compute_dtype(precision, model.dtype)
        exactness = Exactness(tf32=precision == "tf32", deterministic=deterministic)
        self._exactness = exactness if self._device.type == "cuda" else nullcontext()
        self._program = Program.of(model)
        self._recompute = recompute and self.can_recompute
        self._losses = vmap(model.criterion)
        self._criterion = Criterion.of(model.criterion)
        products, aligned = self._program.multiplied_once(), self._aligned()
        self._alone = self._program.used_once() - (products - aligned)
        self._places = self._written_at_once(products & aligned)
        self._tickets: Tensor | None = None
        self._named = self._all_names()
        cast_inputs = partial(cast, compute=self._compute)
        on_gpu = self._device.type == "cuda"
        self._recorded = Recorded(self._pass, cast_inputs) if on_gpu else None
        self._unsure, self._looks_at_loss = not of_torch_or_ours(model.criterion), False
        self._replayed = Replayed(self._gathered) if of_torch_or_ours(model.criterion) else None
        self._ready = False
        self._ticks, self._cumulative = self._count_batches()

    @property
    def can_recompute(self) -> bool:
        """Whether activations can be computed twice."""
        return self._program.can_recompute

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""
        for start in range(0, len(params), self._chunk):
            rows = slice(start, start + self._chunk)
            some = batch.some(rows)
            with self._exactness:
                found = self._some(params, buffers, rows, some)
            yield found

    def _some(self, params: Tensor, buffers: Tensor, rows: slice, some: Batch) -> Gradients:
        """The gradients of a chunk."""
        if uses_triton(params):
            self._keep_tickets(min(self._chunk, len(params)))
        if not self._ready and uses_triton(params):
            with compiling_ahead():
                self._differentiate(params[rows], buffers[rows].clone(), some, self._ignored(some))
        self._ready = True
        if self._recorded and self._chunk >= len(params):
            losses, found = self._recorded(params, buffers, some)
            return Gradients(rows, losses, iter(found))
        once = self._replayed if self._chunk >= len(params) and not params.is_cuda else None
        call = once or self._gathered
        losses, found = call(params[rows], buffers[rows], some, self._ignored(some))
        return Gradients(rows, losses, iter(found))

    def _keep_tickets(self, count: int) -> None:
        """Have tickets for so many rows; a recording of fewer is over when more come."""
        if self._tickets is None or self._tickets.shape[-1] < count:
            shape = 2 * self._program.convolutions, 2, count
            self._tickets = torch.zeros(shape, dtype=torch.int32, device=self._device)

    def _pass(
        self, params: Tensor, buffers: Tensor, batch: Batch
    ) -> tuple[Tensor, list[tuple[slice, Tensor]]]:
        """The losses and all gradients of all rows, for a recording."""
        self._looks_at_loss, self._unsure = self._unsure, False
        if (
            len(params) >= 32
            and self._compute == torch.bfloat16
            and self._program.has_short_kernels
        ):
            return self._halves(params, buffers, batch)
        losses, found = self._gathered(params, buffers, batch, self._ignored(batch))
        return losses, list(found)

    def _gathered(
        self, params: Tensor, buffers: Tensor, batch: Batch, ignored: int | None
    ) -> tuple[Tensor, Iterator[tuple[slice, Tensor]]]:
        """The same; most of the gradients of products are written where they are gathered."""
        layout = self._model.params
        if not params.is_cuda or not self._places:
            losses, grads = self._differentiate(params, buffers, batch, ignored)
            return losses, pieces(grads, layout)
        found = torch.empty(params.shape, dtype=params.dtype, device=params.device)
        views = layout.views(found)
        places = {name: views[name] for name in self._places}
        losses, grads = self._differentiate(params, buffers, batch, ignored, places)
        for place, grad in _elsewhere(views, grads):
            place.copy_(grad)
        return losses, columns(found)

    def _halves(
        self, params: Tensor, buffers: Tensor, batch: Batch
    ) -> tuple[Tensor, list[tuple[slice, Tensor]]]:
        """The same, half of the rows beside the others: where one waits, the other goes on."""
        losses, found = params.new_empty(len(params)), torch.empty_like(params)

        def half(rows: slice) -> None:
            own, views = batch.some(rows), self._model.params.views(found[rows])
            places = {name: view for name, view in views.items() if name in self._alone}
            losses[rows], grads = self._differentiate(
                params[rows], buffers[rows], own, self._ignored(own), places, rows.start
            )
            left = _elsewhere(views, grads)
            if len(left) == len(views):
                torch.cat([grad.reshape(len(grad), -1) for grad in grads], 1, out=found[rows])
            else:
                for place, grad in left:
                    place.copy_(grad)

        middle = len(params) // 2
        both = slice(0, middle), slice(middle, len(params))
        each_on_own_stream([partial(half, rows) for rows in both], self._device)
        return losses, [(slice(0, params.shape[1]), found)]

    def _differentiate(
        self,
        params: Tensor,
        buffers: Tensor,
        batch: Batch,
        ignored: int | None,
        places: Mapping[str, Tensor] | None = None,
        first: int = 0,
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses of the rows and the gradient of each tensor; updates the buffers.

        A class may be `ignored`. Some gradients are written into their `places`. The first row is
        the `first` one of a pass.
        """
        views = self._model.params.views(params)
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        kept = self._model.buffers.views(buffers)
        counted = {n: self._model.native(n, kept[n]).to(params.dtype) for n in self._cumulative}
        tensors = self._tensors(leaves, {**kept, **counted})
        if not isinstance(batch.inputs, Tensor):
            raise Uncovered("inputs of several tensors are not covered")
        tickets = None if self._tickets is None else self._tickets[..., first : first + len(params)]
        given = tensors, batch.keys, self._compute, places, tickets
        rows = Rows(*given, recompute=self._recompute)
        losses = self._losses_of(rows, batch, ignored)
        # Rows do not depend on each other: the gradient of the sum is that of each of them.
        with without_side_stream(self._program.shares_parameters):
            grads = torch.autograd.grad(
                losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        wait_for_side_stream(self._device)
        for name in self._cumulative:
            kept[name].round_()  # as native numbers are
        if self._ticks is not None:
            buffers += self._ticks
        return losses.detach(), list(grads)

    def _losses_of(self, rows: Rows, batch: Batch, ignored: int | None) -> Tensor:
        """The loss of each row; that of a language model without all its logits at once."""
        assert isinstance(batch.inputs, Tensor)  # seen before
        if (head := self._head_for(batch.targets)) is not None:
            assert isinstance(batch.targets, Tensor)  # it takes nothing else
            x = self._program(batch.inputs, rows, headless=True)
            return head_loss.run(rows, head, x, batch.targets, ignored)
        outputs = map_aggregate(self._program(batch.inputs, rows), self._kept)
        found = self._criterion and self._criterion.of_outputs(outputs, batch.targets)
        if found is not None:
            return found
        if self._looks_at_loss:
            self._looks_at_loss = False
            self._look_at_loss(partial(self._losses, outputs, batch.targets))
        return self._losses(outputs, batch.targets)

    def _look_at_loss(self, call: Callable[[], Tensor]) -> None:
        """Give recording up for a loss that may do something else at a later call."""
        if counts_calls(self._model.criterion, call):
            self._recorded = None
            warnings.warn(
                f"the loss {shown(self._model.criterion)} counts its calls, so that its steps are "
                f"no CUDA graph and take longer: make it a function of outputs and targets alone",
                stacklevel=2,
            )

    def _head_for(self, targets: Any) -> str | None:
        """The name of the layer that ends in the loss, if one does."""
        return self._program.head if self._criterion and self._criterion.takes(targets) else None

    def _ignored(self, batch: Batch) -> int | None:
        """The class that does not count in the loss, if a layer ends in it and any may be that."""
        if (head := self._head_for(batch.targets)) is None:
            return None
        assert self._criterion is not None
        assert isinstance(batch.targets, Tensor)  # it takes nothing else
        classes = len(self._model.skeleton.get_parameter(f"{head}.weight".lstrip(".")))
        return self._criterion.ignored_in(batch.targets, classes)

    def _aligned(self) -> set[str]:
        """The tensors whose places in the rows torch's products can write into without delay."""
        layout, each = self._model.params, self._model.dtype.itemsize
        starts = zip(layout.names, layout.starts, strict=True)
        return {n for n, at in starts if dispatch.writes_products(at * each, layout.size * each)}

    def _written_at_once(self, products: set[str]) -> list[str]:
        """The weights whose gradients go where they are gathered; none, if they are but few."""
        layout = self._model.params
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        names = sorted(products & sizes.keys())
        return names if 2 * sum(sizes[name] for name in names) >= layout.size else []

    def _kept(self, output: Any) -> Any:
        """An output as the loss is to see it, in the parameters' dtype."""
        return output.to(self._model.dtype) if isinstance(output, Tensor) else output

    def _tensors(self, leaves: dict[str, Tensor], buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of the module under all their names, those outside the rows expanded."""
        known = {**leaves, **buffers}
        workers = len(next(iter(leaves.values())))
        return {
            name: known[first] if first in known else tensor.expand(workers, *tensor.shape)
            for name, first, tensor in self._named
        }

    def _all_names(self) -> list[tuple[str, str, Tensor]]:
        """All names of the module's tensors, the first name of each, and what it was given with."""
        module = self._model.skeleton
        first: dict[int, str] = {}
        return [
            (name, first.setdefault(id(tensor), name), tensor.detach())
            for name, tensor in (
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            )
        ]

    def _count_batches(self) -> tuple[Tensor | None, list[str]]:
        """What a pass adds to BatchNorm's numbers of batches [1, b]; those that count in means."""
        layout = self._model.buffers
        ticks = torch.zeros(1, layout.size, dtype=self._model.dtype)
        views = layout.views(ticks[0])
        skeleton = self._model.skeleton
        layers = dict(skeleton.named_modules(remove_duplicate=False))
        names = {id(buffer): name for name, buffer in skeleton.named_buffers()}  # the first of each
        cumulative = []
        for layer in (layers[name] for name in self._program.norms()):
            key = names.get(id(layer.num_batches_tracked))
            if key in views and layer.training:
                views[key] += 1
                cumulative += [key] if layer.momentum is None else []
        return ticks.to(self._device) if ticks.any() else None, cumulative


def _elsewhere(
    places: Mapping[str, Tensor], grads: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """The gradients that were not written where they belong, with their places."""
    both = zip(places.values(), grads, strict=True)
    return [(place, grad) for place, grad in both if grad.data_ptr() != place.data_ptr()]
