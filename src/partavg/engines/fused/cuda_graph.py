"""A whole pass as one CUDA graph, which the host starts with a single call."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from partavg.core.inputs import each, tensors
from partavg.core.loop import Batch

Pass = Callable[[Tensor, Tensor, Batch], Any]
"""(params, buffers, batch) -> losses and gradients; updates the buffers."""


class Recorded:
    """Calls a pass as it is at first; from the second call on the same rows, replays it.

    What it returns is overwritten by the next call. A recorded pass reads a copy of each batch, and
    copying does what `cast` does: inputs become what the pass computes with.
    """

    def __init__(self, call: Pass, cast: Callable[[Tensor], Tensor]) -> None:
        self._call, self._cast = call, cast
        self._seen: object = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None
        self._found: Any = None

    def __call__(self, params: Tensor, buffers: Tensor, batch: Batch) -> Any:
        """What the pass returns for these rows and this batch."""
        rows = [(tensor.data_ptr(), tensor.shape) for tensor in (params, buffers)]
        key = rows, [(tensor.dtype, tensor.shape) for tensor in _tensors(batch)]
        if key != self._seen:  # the first call compiles kernels, which a recording cannot
            self._seen, self._graph, self._batch, self._found = key, None, None, None
            return self._call(params, buffers, self._as_computed(batch))
        if self._graph is None:
            self._batch = self._as_computed(batch).each(Tensor.clone)
            self._record(params, buffers, self._batch)
        assert self._graph is not None
        assert self._batch is not None
        for ours, theirs in zip(_tensors(self._batch), _tensors(batch), strict=True):
            ours.copy_(theirs)
        self._graph.replay()
        return self._found

    def _as_computed(self, batch: Batch) -> Batch:
        """With inputs cast."""
        return batch._replace(inputs=each(self._cast, batch.inputs))

    def _record(self, params: Tensor, buffers: Tensor, batch: Batch) -> None:
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        torch.cuda.empty_cache()  # a recording has memory of its own
        with _uncollected(), torch.cuda.graph(graph):
            self._found = self._call(params, buffers, batch)
        self._graph = graph


def _tensors(batch: Batch) -> list[Tensor]:
    return [tensor for field in batch for tensor in tensors(field)]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: an older graph let go of would spoil the recording."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
