"""The CUDA kernels, compiled by the C++ compiler of the machine and run on its CPU."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from partavg.engines.fused.convolution import cuda_sources

COMPILER = shutil.which("g++") or shutil.which("clang++")
OF_GPU = "instructions", "warpgroups", "add_product"
"""What `cuda_on_cpu.h` has words of its own for."""
_RUN = """
extern "C" void run(int across, int down, int threads, int shared, bool early, void** given) {
  early_copies = early;
  on_grid([](void** given) { unpack(%s, given); }, across, down, threads, shared, given);
}
"""


def compiled(
    name: str, constants: tuple[tuple[str, int], ...], memory: int, *, early_copies: bool = False
) -> Callable[..., None]:
    """Stands in for `cuda_sources.compiled`."""
    source = cuda_sources.source(name, constants, without=OF_GPU)
    return started(built(source, name), early_copies=early_copies)


def started(run: Any, *, early_copies: bool) -> Callable[..., None]:
    """What starts a kernel that was built, as torch's own do."""

    def call(grid: Any, block: Any, arguments: list[Any], shared: int) -> None:
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a)
            for a in arguments
        ]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        run(*grid[:2], block[0], shared, early_copies, places)

    return call


@cache
def built(kernel: str, name: str, together: int = 1) -> Any:
    """A kernel from its text, for clusters of so many blocks."""
    start = f"#define TOGETHER {together}\n"
    start += Path(__file__).with_name("cuda_on_cpu.h").read_text()
    where = Path(mkdtemp())
    (where / "kernel.cpp").write_text(start + kernel + _RUN % name)
    options = ["-O1", "-std=c++17", "-w", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so"]
    subprocess.run([COMPILER, *options], cwd=where, check=True, capture_output=True, text=True)
    run = ctypes.CDLL(str(where / "kernel.so")).run
    run.argtypes = [*[ctypes.c_int] * 4, ctypes.c_bool, ctypes.c_void_p]
    shutil.rmtree(where)
    return run
