"""A convolution as its kernels see it: the facts that decide which of them runs."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]


class Window(NamedTuple):
    """How a filter moves over an image, as in nn.Conv2d."""

    stride: Pair = (1, 1)
    padding: Pair | str = (0, 0)
    """"valid" is the only word: it means none."""
    dilation: Pair = (1, 1)
    groups: int = 1

    @classmethod
    def of(cls, layer: Any) -> "Window":
        """Of a layer."""
        return cls(layer.stride, layer.padding, layer.dilation, layer.groups)

    @property
    def rim(self) -> Pair:
        """The padding in numbers."""
        return (0, 0) if isinstance(self.padding, str) else self.padding


class Case(NamedTuple):
    """A convolution of one worker's images, and of all other workers' with weights of their own."""

    images: int
    inputs: int
    """Channels of a group."""
    height: int
    width: int
    outputs: int
    taps: Pair
    window: Window = Window()
    bias: bool = False
    dtype: torch.dtype = torch.bfloat16
    """Of the activations."""
    gradient: bool = True
    """Whether a gradient goes back to the inputs: images get none."""
    contiguous: bool = True
    """Whether a worker's weights lie in one piece."""

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, *, gradient: bool
    ) -> "Case":
        """For x [m, n, c, h, w] and weights [m, k, c / groups, r, s]."""
        outputs, inputs, high, wide = weight.shape[1:]
        return cls(
            images=x.shape[1],
            inputs=inputs,
            height=x.shape[3],
            width=x.shape[4],
            outputs=outputs,
            taps=(high, wide),
            window=window,
            bias=bias is not None,
            dtype=x.dtype,
            gradient=gradient,
            contiguous=weight[0].is_contiguous(),
        )
