"""Several workers at a time, each in a thread with a core of its own: for a CPU."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from threading import Barrier

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partavg.core.loop import Batch, Gradients
from partavg.engines.looped import one_worker
from partavg.engines.model import RowModel
from partavg.engines.pieces import pieces

_NARROW = 64
"""Channels: up to so many LEAF's CNN takes 15 % less time, ResNet-20 21; others 2 to 6 more."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Threaded:
    """Computes what a loop does, some workers at a time, each in a thread that uses one core.

    Cores that share a worker wait for each other after every layer; here they need not. A thread
    has a module of its own, and which thread computes a worker makes no difference to a number.
    torch's generators are shared by all threads, so that no model may draw from them. Networks
    with few channels get images whose channels lie last in memory, which pooling and narrow
    convolutions are faster on, if they can read them so.
    """

    def __init__(self, model: RowModel, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"{threads} threads are none: use 1 or more")
        self._layout = model.params
        self._channels_last: bool | None = None if _is_narrow(model.skeleton) else False
        self._ahead = threads + 1  # one is waiting while gradients are stepped
        self._free: SimpleQueue[RowModel] = SimpleQueue()
        for _ in range(threads):
            self._free.put(model.twin())
        self._pool = _pool(threads)  # ends when this is let go of

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""

        def compute(row: int) -> tuple[Tensor, list[Tensor]]:
            model = self._free.get()
            try:
                return one_worker(model, params[row], buffers[row], *batch.one(row))
            finally:
                self._free.put(model)

        rows = iter(range(len(params)))
        begun: deque[Future[tuple[Tensor, list[Tensor]]]] = deque()
        with _one_core():
            batch = self._laid(params, buffers, batch)
            try:
                begun += (self._pool.submit(compute, row) for row in islice(rows, self._ahead))
                for row in range(len(params)):
                    loss, grads = begun[0].result()
                    begun.popleft()
                    begun += (self._pool.submit(compute, next_row) for next_row in islice(rows, 1))
                    yield Gradients(slice(row, row + 1), loss, pieces(grads, self._layout))
            finally:  # nobody writes to rows when this is over, however it ends
                for future in begun:
                    future.cancel()
                wait(begun)

    def _laid(self, params: Tensor, buffers: Tensor, batch: Batch) -> Batch:
        """A batch as the model is fast on it; on the first one it is tried whether it can be."""
        images = batch.inputs
        if not isinstance(images, Tensor) or images.ndim != 5 or not images.is_floating_point():
            return batch
        if self._channels_last is False:
            return batch
        workers, count, *sizes = images.shape
        last = images.new_empty(workers, count, *sizes[1:], sizes[0]).permute(0, 1, 4, 2, 3)
        laid = batch._replace(inputs=last.copy_(images))
        if self._channels_last is None:
            model = self._free.get()
            try:
                one_worker(model, params[0], buffers[0].clone(), *laid.one(0))
                self._channels_last = True
            except RuntimeError:  # perhaps a view that memory does not allow; else it comes again
                self._channels_last = False
                return batch
            finally:
                self._free.put(model)
        return laid


def _is_narrow(module: nn.Module) -> bool:
    """Whether there are convolutions of images, and none of them has many channels."""
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return 0 < max((conv.out_channels for conv in convs), default=0) <= _NARROW


def why_not(module: nn.Module) -> str:
    """Why a module had better not run in several threads at once; nothing if it may."""
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks, None) for hooks in _HOOKS):
            what = f"layer {name!r}" if name else "the model"
            return f"{what} has a hook, which may write to what threads share"
    return ""


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch uses one core.

    A thread says so for itself, but also for threads that begin later: the caller takes that back
    when all have begun.
    """
    before, all_here = torch.get_num_threads(), Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        all_here.wait()

    pool = ThreadPoolExecutor(threads, "partavg-worker", initializer=begin)
    try:
        for _ in range(threads):
            pool.submit(int)
        all_here.wait()
    except BaseException:
        all_here.abort()
        raise
    finally:
        torch.set_num_threads(before)
    return pool


@contextmanager
def _one_core() -> Iterator[None]:
    """The caller uses one core, too: its threads would spin while they wait for work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
