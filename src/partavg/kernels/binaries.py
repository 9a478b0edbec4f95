"""Compiled CUDA kernels on disk: each is compiled once, not once for each run.

What Triton compiles it keeps itself. A file is named after all that its binary depends on; one that
cannot be used is made again.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from partavg.kernels.kept_files import folder, read, write
from partavg.torch_internals import Binary, cuda_compiler, cuda_in_two_steps


def kernel(source: str, name: str) -> Any:
    """A kernel from its source, compiled now or in an earlier run."""
    whole, steps, place = cuda_compiler(), cuda_in_two_steps(), folder()
    assert whole is not None  # otherwise dispatch takes other kernels
    given = source, name, called(torch.cuda.get_device_capability())
    if steps is None or place is None:
        return whole(*given)
    compiled, load = steps
    try:
        return _kept(place / f"{_key(*given)}.cubin", lambda: compiled(*given), load)
    except Exception:  # torch promises nothing of single steps; a wrong source fails again, as such
        return whole(*given)


def called(capability: tuple[int, int]) -> str:
    """A GPU as compilers call it: "a" has what only this one can do, as Hopper's warp groups."""
    return "{}{}{}".format(*capability, "a" if capability >= (9, 0) else "")


def _kept(path: Path, compile: Callable[[], Binary], load: Callable[[Binary], Any]) -> Any:
    with suppress(Exception):  # there is none, it is damaged, or the driver refuses it
        return load(_read(path))
    binary = compile()
    made = load(binary)
    with suppress(OSError):  # without a place on disk, the next run compiles again
        _write(path, binary)
    return made


def _key(source: str, name: str, device: str) -> str:
    """What a binary depends on, in a few letters."""
    known = source, name, device, torch.__version__, torch.version.cuda
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _read(path: Path) -> Binary:
    name, content = read(path).split(b"\n", 1)
    return Binary(content, name.decode())


def _write(path: Path, binary: Binary) -> None:
    write(path, f"{binary.name}\n".encode() + binary.content)
