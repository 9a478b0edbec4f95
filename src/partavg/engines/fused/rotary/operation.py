"""The rotary positions of `partavg.models.gpt` for all workers at once."""

from typing import Any

from torch import Tensor
from torch.func import vmap

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.rows import Rows
from partavg.models.gpt import rotated


def angles(function: Any, rows: Rows, name: str, length: int, width: int, like: Tensor) -> Any:
    """Cosines and sines, the same for all workers."""
    return rows.for_all(function(length, width, like))


def run(function: Any, rows: Rows, name: str, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """X [m, n, heads, t, d], its columns turned."""
    if not dispatch.turns_by_triton(x, turns[0], device_of(x)):
        found: Tensor = vmap(rotated)(x, turns)
        return found
    from partavg.engines.fused.rotary.rotary import Rotary

    flat = x.flatten(0, 1)
    y: Tensor = Rotary.apply(flat, turns[0][0], turns[1][0])  # type: ignore[no-untyped-call]
    return y.view(x.shape)
