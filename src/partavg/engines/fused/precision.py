"""In which numbers the fused engine computes."""

from typing import Literal

import torch
from torch import Tensor

Precision = Literal["auto", "bf16", "tf32", "fp32"]
"""Of activations and products; parameters, gradients and statistics are always kept in full."""


def resolve(precision: Precision, dtype: torch.dtype, device: torch.device) -> Precision:
    """What "auto" means: bf16 for float32 models on GPUs that multiply in it, else fp32."""
    if precision != "auto":
        return precision
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if fast and dtype == torch.float32 else "fp32"


def compute_dtype(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    """The dtype of activations for parameters of some dtype."""
    return torch.bfloat16 if precision == "bf16" and dtype == torch.float32 else dtype


def cast(value: Tensor, compute: torch.dtype) -> Tensor:
    """A value as activations are computed; whole numbers stay what they are."""
    return value.to(compute) if value.is_floating_point() else value


class Exactness:
    """How torch's own kernels round and add up on a GPU, for a while."""

    def __init__(self, *, tf32: bool, deterministic: bool) -> None:
        self._wanted = tf32, tf32, deterministic
        self._before: tuple[bool, bool, bool] = self._wanted

    def __enter__(self) -> None:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        self._before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic
        self._set(self._wanted)

    def __exit__(self, *_: object) -> None:
        self._set(self._before)

    def _set(self, values: tuple[bool, bool, bool]) -> None:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = values
