"""Starts Triton's kernels; compiles all that a pass needs beforehand, many at a time."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from partavg.kernels import waking

Calls = dict[object, Callable[[], object]]
_collected: list[Calls] = []


def launch(
    kernel: Any,
    grid: Sequence[int],
    tensors: Sequence[Any],
    sizes: Mapping[str, int],
    **constants: Any,
) -> None:
    """Start a kernel. A new one is compiled for other constants, but not for other sizes.

    The first tensor stands for those that there are not, which the kernel must not use.
    """
    tensors = [tensors[0] if tensor is None else tensor for tensor in tensors]
    if _collected:
        aligned = tuple(map(_kind, tensors))
        key = kernel.__name__, aligned, tuple(constants.items())
        _collected[-1][key] = lambda: kernel.warmup(*tensors, grid=grid, **sizes, **constants)
    else:
        kernel[grid](*tensors, **sizes, **constants)


def _kind(tensor: Any) -> object:
    """What of a tensor, or of a description of one, a kernel is compiled for."""
    if isinstance(tensor, Tensor):
        return tensor.dtype, tensor.data_ptr() % 16 == 0
    return tensor.base.dtype, tuple(tensor.block_shape)


def only_compiled(key: object, compile: Callable[[], object]) -> bool:
    """Whether a kernel that is no Triton's is not to start, but to be compiled with the others."""
    if _collected:
        _collected[-1][key] = compile
    return bool(_collected)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Start no kernel inside, and compile all of them at the end; what is computed is void.

    One after another, the kernels of a network would take half a minute.
    """
    calls: Calls = {}
    _collected.append(calls)
    try:
        yield
    finally:
        _collected.pop()
    waking.wait()
    _compile(calls)


def _compile(calls: Calls) -> None:
    """Compile kernels, or find them on disk, many at a time."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for future in [pool.submit(call) for call in calls.values()]:
            future.result()
