"""Dropout for all workers at once, with the masks that the other engines draw from their keys."""

from typing import Any

from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from partavg.engines.dropout import NEXT, KeyedDropout
from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.rows import Rows

_FUNCTION_OF: dict[type[nn.Module], Any] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
}


def run(by: Any, rows: Rows, name: str, x: Tensor, *args: Any, **options: Any) -> Any:
    """Drop some of x [m, n, …] by a layer, or by a function with p and whether it trains."""
    if isinstance(by, nn.Module):
        by, args, options = _FUNCTION_OF[type(by)], (by.p, by.training), {}
    options = {**options, "inplace": False}
    p = options.get("p", args[0] if args else 0.5)
    if p == 0 or not options.get("training", args[1] if len(args) > 1 else True):
        return x

    if by is F.dropout and dispatch.drops_by_triton(x.shape, x.dtype, device_of(x)):
        from partavg.engines.fused.dropout.each import DropEach

        return DropEach.apply(x, rows.next_keys() + NEXT, float(p))  # type: ignore[no-untyped-call]

    def drop(x: Tensor, key: Tensor) -> Any:
        with KeyedDropout(key):
            return by(x, *args[:2], **options)

    return vmap(drop)(x, rows.next_keys())
