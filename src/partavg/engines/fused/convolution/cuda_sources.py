"""The CUDA kernels of convolutions: what each is made of, compiled and started."""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch

from partavg.engines.fused.convolution.tiling import Constants
from partavg.kernels.binaries import kernel
from partavg.kernels.launch import only_compiled

_TILES = "instructions", "halves", "tiles"
_SQUARES = "instructions", "halves", "warpgroups", "squares"
PARTS = {
    "pack_weights": _TILES,
    "convolve": (*_TILES, "pixels", "last"),
    "weight_gradient": (*_TILES, "taps", "last"),
    "both_gradients": (*_TILES, "pixels", "taps", "last"),
    "pack_squares": _SQUARES,
    "convolve_squares": (*_SQUARES, "add_product"),
    "weigh_squares": (*_SQUARES, "add_product"),
    "turn_squares": _SQUARES,
}
"""The kernels, each in a file of its name, and what comes before it."""


def evenly(tiles: int, workers: int, slots: int, most: int, *, beside: int = 0) -> int:
    """Tiles for one block of at most so many, so that all blocks end at about the same time.

    `beside` is how many tiles take as long as what a block does besides.
    """

    def time(splits: int) -> tuple[int, int]:
        return -(-splits * workers // slots) * (-(-tiles // splits) + beside), splits

    return -(-tiles // min(range(1, min(tiles, most) + 1), key=time))


@cache
def processors(device: torch.device) -> int:
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def start(
    name: str, constants: Constants, memory: int, grid: tuple[int, int], arguments: list[Any]
) -> None:
    """Start a kernel on a grid of blocks, or remember to compile it."""
    if not only_compiled((name, constants), lambda: compiled(name, constants, memory)):
        threads = dict(constants)["THREADS"]
        compiled(name, constants, memory)((*grid, 1), (threads, 1, 1), arguments, memory)


@cache
def compiled(name: str, constants: Constants, memory: int) -> Any:
    """A kernel with so much shared memory."""
    torch.cuda.synchronize()  # so that a thread of its own knows the device
    found = kernel(source(name, constants), name)
    found.set_shared_memory_config(memory)
    return found


def source(name: str, constants: Constants, without: Sequence[str] = ()) -> str:
    """All of a kernel's text; tests leave parts out, for which a CPU has its own words."""
    given = "".join(f"#define {key} {int(value)}\n" for key, value in constants)

    def text(part: str) -> str:
        return add_product(dict(constants)["N"]) if part == "add_product" else _text(part)

    return given + "".join(text(part) for part in (*PARTS[name], name) if part not in without)


@cache
def _text(part: str) -> str:
    """A file's text, which dozens of kernels begin with."""
    return (resources.files(__package__) / "cuda" / f"{part}.cu").read_text()


def add_product(columns: int) -> str:
    """The function that multiplies 64 x 16 by 16 x columns numbers: it names all registers."""
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        "// Adds a x b to sums; ACROSS: a matrix lies in memory across what is summed over.\n"
        "template <int A_ACROSS, int B_ACROSS>\n"
        "__device__ __forceinline__ void add_product(float* d, u64 a, u64 b) {\n"
        '  asm volatile("{.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{sums}}}, "\n'
        f'    "%{count}, %{count + 1}, add, 1, 1, %{count + 2}, %{count + 3};}}"\n'
        f'    : {outputs} : "l"(a), "l"(b), "n"(A_ACROSS), "n"(B_ACROSS));\n'
        "}\n"
    )
