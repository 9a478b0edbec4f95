"""LSTM layers of all workers with Triton, a kernel for each step and way."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from partavg.engines.fused.linear.operation import Affine, product_into
from partavg.engines.fused.recurrent import steps_kernels as kernels
from partavg.kernels.launch import launch


def layer(
    x: Tensor,
    into: Sequence[Tensor],
    recurrent: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: Tensor,
    cell: Tensor,
    *,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of x [m, n, t, e], or [m, t, n, e]: outputs as x lies, last states [m, d, n, h].

    Weights and biases are those of each direction, as they are kept; states are [m, d, n, h].
    """
    given: Tensor = Affine.apply(  # type: ignore[no-untyped-call]
        x.flatten(1, 2), torch.cat([*into], 1), None, None
    )
    bias = torch.cat([*biases], 1) if biases else None
    found: tuple[Tensor, Tensor, Tensor] = Steps.apply(  # type: ignore[no-untyped-call]
        given.view(*x.shape[:3], given.shape[2]), bias, hidden, cell, batch_first, *recurrent
    )
    return found


class Steps(torch.autograd.Function):
    """The recurrence of the inputs' share of the gates [m, n, t, d · 4h], or [m, t, n, d · 4h].

    One direction reads from the end. The weights' gradients are one product over all steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        bias: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
        batch_first: bool,
        *recurrent: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, and the last hidden states and cells."""
        cut = Cut.of(given, hidden, batch_first)
        low = torch.stack([weight.to(given.dtype) for weight in recurrent], 1)
        gates, before = torch.empty_like(given), given.new_empty(cut.shape)
        outputs = torch.empty_like(before)
        cells = given.new_empty(cut.steps + 1, *hidden.shape, dtype=torch.float32)
        shift = low if bias is None else bias.float()
        cells[0] = cell
        for way in range(cut.ways):
            cut.in_time(before)[:, :, -way, way] = hidden[:, way]
        for step in range(cut.steps):
            launch(
                kernels.step_forward,
                cut.grid(_FORWARD),
                (given, low, shift, before, cells, gates, outputs),
                cut.sizes(step),
                BIAS=bias is not None,
                **cut.constants(_FORWARD, cut.width, given.dtype),
            )
        ctx.save_for_backward(low, gates, before, cells)
        ctx.cut, ctx.kept = cut, [None if p is None else p.dtype for p in (bias, *recurrent)]
        ctx.set_materialize_grads(False)
        ends = [cut.in_time(outputs)[:, :, way - 1, way] for way in range(cut.ways)]
        return outputs.flatten(3), torch.stack(ends, 1), cells[-1].to(given.dtype, copy=True)

    @staticmethod
    def backward(
        ctx: Any, outer: Tensor | None, last: Tensor | None, end: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs' share, of biases, first states and weights."""
        low, gates, before, cells = ctx.saved_tensors
        cut: Cut = ctx.cut
        grads = torch.empty_like(gates)
        outward = gates if outer is None else outer.contiguous()
        last = torch.zeros_like(cells[0]) if last is None else last.contiguous()
        cell = torch.zeros_like(cells[0]) if end is None else end.to(cells.dtype, copy=True)
        cell = cell.contiguous()
        for step in reversed(range(cut.steps)):
            launch(
                kernels.step_backward,
                cut.grid(_BACKWARD),
                (outward, last, low, gates, cells, cell, grads),
                cut.sizes(step),
                OUTER=outer is not None,
                LAST=step + 1 == cut.steps,
                **cut.constants(_BACKWARD, 4 * cut.width, gates.dtype),
            )
        first = None
        if ctx.needs_input_grad[2]:
            timed = cut.in_time(grads.view(*cut.shape[:4], 4 * cut.width))
            begin = torch.stack([timed[:, :, -way, way] for way in range(cut.ways)], 1)
            first = begin @ low
        flat = grads.flatten(1, 2)
        bias, *kept = ctx.kept
        weights = [
            product_into(None, some, states, dtype)
            for some, states, dtype in zip(
                flat.chunk(cut.ways, 2), before.flatten(1, 2).unbind(2), kept, strict=True
            )
        ]
        d_bias = None if bias is None else flat.sum(1, dtype=bias)
        return grads, d_bias, first, cell.to(gates.dtype), None, *weights


_FORWARD, _BACKWARD = 32, 64
"""Units of a program, at most: four gates of each, or one gradient."""


class Cut(NamedTuple):
    """The sizes of a layer, and how programs share them."""

    workers: int
    ways: int
    samples: int
    steps: int
    width: int
    batch_first: bool

    @classmethod
    def of(cls, given: Tensor, hidden: Tensor, batch_first: bool) -> "Cut":
        """Of the inputs' share and the first states [m, d, n, h]."""
        workers, ways, samples, width = hidden.shape
        steps = given.shape[2 if batch_first else 1]
        return cls(workers, ways, samples, steps, width, batch_first)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of hidden states of all tokens."""
        tokens = (self.samples, self.steps) if self.batch_first else (self.steps, self.samples)
        return self.workers, *tokens, self.ways, self.width

    def in_time(self, tokens: Tensor) -> Tensor:
        """Values of all tokens as [m, n, t, …]."""
        return tokens if self.batch_first else tokens.transpose(1, 2)

    def sizes(self, step: int) -> dict[str, int]:
        """What kernels are told but not compiled for."""
        return {
            "step": step,
            "steps": self.steps,
            "rows": self.workers * self.ways,
            "count": self.samples,
            "sample": self.steps if self.batch_first else 1,
            "moment": 1 if self.batch_first else self.samples,
        }

    def constants(self, units: int, deep: int, dtype: torch.dtype) -> dict[str, Any]:
        """What kernels are compiled for; `deep` is how many numbers a product adds up."""
        return {
            "WAYS": self.ways,
            "WIDTH": self.width,
            "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
            "SAMPLES": self._tall,
            "UNITS": _block(self.width, units),
            "DEEP": _block(deep, 128 // dtype.itemsize),
            "num_warps": self._tall // 4,
            "num_stages": 4,
        }

    def grid(self, units: int) -> tuple[int]:
        """How many programs there are."""
        across = triton.cdiv(self.width, _block(self.width, units))
        return (self.workers * self.ways * across * triton.cdiv(self.samples, self._tall),)

    @property
    def _tall(self) -> int:
        return _block(self.samples, 32)


def _block(size: int, most: int) -> int:
    """A power of 2 that products take: 16 or more."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
