"""Where channels lie: torch calls activations [m, n, c, …], kernels read [m, n, …, c]."""

from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """[m, n, c, …] as [m, n, …, c] in memory; no copy where it lies so already."""
    return x.movedim(2, -1).contiguous()


def has_channels_last(x: Tensor) -> bool:
    """Whether [m, n, c, …] lies in memory so, in one piece."""
    return x.ndim > 3 and x.movedim(2, -1).is_contiguous()


def channels_first(x: Tensor) -> Tensor:
    """[m, n, …, c] seen as [m, n, c, …]; never a copy."""
    return x.movedim(-1, 2)
