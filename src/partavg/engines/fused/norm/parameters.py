"""What BatchNorm layers of all workers keep."""

from typing import NamedTuple

from torch import Tensor

from partavg.engines.fused.rows import Rows


class NormParameters(NamedTuple):
    """Parameters and running statistics [m, c] of a layer, where it has them."""

    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    var: Tensor | None

    @classmethod
    def of(cls, rows: Rows, name: str) -> "NormParameters":
        """Of the layer called so; the kernels take one stride for weight and bias."""
        keys = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, var = (rows.maybe(name, key) for key in keys)
        if weight is not None and bias is not None and weight.stride(0) != bias.stride(0):
            weight, bias = weight.contiguous(), bias.contiguous()  # one of them is frozen
        return cls(weight, bias, mean, var)

    @property
    def running(self) -> tuple[Tensor, Tensor] | None:
        """Both running statistics."""
        return None if self.mean is None or self.var is None else (self.mean, self.var)
