"""Compiled CUDA kernels on disk: each is compiled once, not once for each run.

What Triton compiles it keeps itself. A file is named after all that its binary depends on, and
written as a whole or not at all; one that cannot be used is made again.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path

from partavg.torch_internals import Binary, cuda_compiler, cuda_in_two_steps

VARIABLE = "PARTAVG_KERNELS"
OFF = "off"


def folder() -> Path | None:
    """Where binaries are: the folder in the environment, else in the user's cache; None if off."""
    given = os.environ.get(VARIABLE)
    if given:
        return None if given == OFF else Path(given).expanduser()
    return user_cache_path("partavg", appauthor=False, opinion=False) / "kernels"


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
    name, checked, content = path.read_bytes().split(b"\n", 2)
    if hashlib.sha256(content).hexdigest().encode() != checked:
        raise ValueError(f"{path} is damaged")
    return Binary(content, name.decode())


def _write(path: Path, binary: Binary) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    checked = hashlib.sha256(binary.content).hexdigest()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="draft", delete=False) as draft:
        try:
            draft.write(f"{binary.name}\n{checked}\n".encode() + binary.content)
            draft.close()
            Path(draft.name).replace(path)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise
