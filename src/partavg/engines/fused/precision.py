"""In which numbers the fused engine computes."""

from typing import Literal

import torch

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
