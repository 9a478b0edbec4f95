"""Pooling treats every sample by itself: the samples of all workers are one batch."""

from typing import Any

from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import Pool, device_of
from partavg.engines.fused.pool import reference
from partavg.engines.fused.rows import Rows


def run(by: Any, rows: Rows | None, name: str, x: Tensor, *args: Any, **options: Any) -> Any:
    """Pool x [m, n, c, …] by a layer or a function of torch."""
    way = dispatch.pool(by, x.shape, x.dtype, device_of(x), args, options)
    if way == Pool.MEAN and dispatch.averages_by_triton(x, device_of(x)):
        from partavg.engines.fused.pool.mean import MeanOfPixels

        return MeanOfPixels.apply(x)  # type: ignore[no-untyped-call]
    if way == Pool.MEAN:
        return x.mean((-2, -1), keepdim=True)
    if way == Pool.MAX_BY_TWO:
        from partavg.engines.fused.pool.max_pool_by_two import MaxPoolByTwo

        return MaxPoolByTwo.apply(x)  # type: ignore[no-untyped-call]
    return reference.pool(by, x, *args, **options)
