"""Trials of the fused engine on a GPU that succeeded, on disk: the next run need not repeat them.

What is known of a trial is that the engine computed what the loop computes. It is known by all that
this depends on, the numbers of parameters and samples apart; where that cannot be said with
certainty, nothing is known.
"""

import hashlib
import platform
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from partavg.core.inputs import Inputs
from partavg.core.loop import Batch
from partavg.engines.choice import Choice
from partavg.engines.described import Unsure, described
from partavg.engines.fused.program import Program
from partavg.engines.model import RowModel
from partavg.kernels import kept_files
from partavg.losses import of_torch_or_ours

_SAID = b"the fused engine computes what the loop computes"
_SOURCES = "core", "engines", "kernels", "models", "losses.py", "torch_internals.py"
_DRIVER = Path("/proc/driver/nvidia/version")


def fingerprint(choice: Choice, model: RowModel, batch: Batch) -> str | None:
    """All that the outcome of a trial depends on, in a few letters; None where it is not known."""
    device = batch.keys.device
    try:
        if kept_files.folder() is None or not of_torch_or_ours(model.criterion):
            return None
        known = (
            _machine(device),
            _settings(device),
            described(model.skeleton),
            described(model.criterion),
            described([each for each in vars(F).values() if _may_run(each)]),
            str(Program.of(model)),
            [_shape(field) for field in (batch.inputs, batch.targets)],
            len(batch.keys),
            (choice.precision, choice.deterministic, choice.recompute),
        )
    except Exception:  # Unsure, or what a user's own class says when it is looked at
        return None
    return hashlib.sha256(repr(known).encode()).hexdigest()


def is_known(key: str | None) -> bool:
    """Whether such a trial has succeeded before."""
    with suppress(OSError, ValueError):  # there was none, or its file is damaged
        return key is not None and kept_files.read(_path(key)) == _SAID
    return False


def remember(key: str | None) -> None:
    """Let the next run know that a trial has succeeded."""
    if key is not None:
        with suppress(OSError):  # without a place on disk, the next run tries again
            kept_files.write(_path(key), _SAID)


def _path(key: str) -> Path:
    folder = kept_files.folder()
    assert folder is not None  # otherwise there is no key
    return folder / f"{key}.trial"


def _machine(device: torch.device) -> object:
    """The GPU, its driver, and what computes on it; Unsure on a CPU, where engines are timed."""
    if device.type != "cuda":
        raise Unsure("times differ from run to run")
    cuda = torch.cuda.get_device_capability(device), torch.version.cuda
    return torch.cuda.get_device_name(device), cuda, _DRIVER.read_text(), _software()


@cache
def _software() -> object:
    """The versions of all that computes, and our own sources to the letter."""
    folder, digest = Path(__file__).parent.parent, hashlib.sha256()
    for name in _SOURCES:
        place = folder / name
        files = sorted(place.rglob("*.*")) if place.is_dir() else [place]
        for path in files:
            if path.suffix in (".py", ".cu", ".h"):
                digest.update(f"{path.relative_to(folder)} ".encode() + path.read_bytes())
    try:
        triton = import_module("triton").__version__
    except ImportError:
        triton = "none"
    return platform.python_version(), torch.__version__, triton, digest.hexdigest()


def _settings(device: torch.device) -> object:
    """Switches of torch that change what is computed; Unsure where it chooses types by itself."""
    if torch.is_autocast_enabled(device.type):
        raise Unsure("autocast")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return (
        (torch.get_default_dtype(), torch.empty(0).device),
        torch.are_deterministic_algorithms_enabled(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        cudnn.version(),  # type: ignore[no-untyped-call]
        (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction),
        matmul.allow_bf16_reduced_precision_reduction,
    )


def _may_run(thing: Any) -> bool:
    """Whether it is a function, or what somebody may have put in its place."""
    return callable(thing) and not isinstance(thing, type) and type(thing).__module__ != "typing"


def _shape(inputs: Inputs) -> object:
    """How inputs or targets of a batch lie in memory."""
    if isinstance(inputs, Tensor):
        return str(inputs.dtype), tuple(inputs.shape), inputs.stride()
    named = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return type(inputs).__name__, [(name, _shape(tensor)) for name, tensor in named]
