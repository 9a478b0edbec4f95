"""Where Triton's kernels run, and why they cannot."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # on a CPU, slowly: for tests
_avoided: list[None] = []


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def uses_triton(x: Tensor) -> bool:
    """Whether a tensor is computed with Triton's kernels instead of torch's."""
    return (x.is_cuda or _INTERPRETED) and not _avoided and _installed()


@contextmanager
def without_triton() -> Iterator[None]:
    """Compute with torch's kernels alone inside, in any thread: there is nothing to compile."""
    _avoided.append(None)
    try:
        yield
    finally:
        _avoided.pop()


def lacks(device: torch.device) -> str:
    """What a device lacks to run the engine fast, in a few words; nothing on a CPU."""
    if device.type != "cuda":
        return ""
    if not _installed():
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} is older than Triton's kernels need (Ampere)"
    return ""


@cache
def like_hopper(device: torch.device) -> bool:
    """Whether a GPU has a copy engine and the shared memory for its tiles, as Hopper has."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0)) >= 227 * 1024


@cache
def has_warp_groups(device: torch.device) -> bool:
    """Whether a GPU multiplies matrices in shared memory as only Hopper does."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
