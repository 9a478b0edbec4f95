"""Sums over rows, of many spans of columns, and their way back, in one kernel each."""
# mypy: ignore-errors

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from partavg.kernels.launch import launch

_BLOCK = 512  # columns of a program
_EACH = 2  # rows that a program fills: with more of them, it writes in too many places


def weigh_(out: Tensor, rows: Tensor, spans: Sequence[tuple[int, int]], weights: Tensor) -> None:
    """The weighted sum of rows [m, d] in the columns of all spans goes to out [l]."""
    table = _table(tuple(spans), rows.device)
    launch(
        _weigh,
        (table.shape[1],),
        (rows, weights, table, out),
        {"workers": len(rows), "stride": rows.stride(0)},
        BLOCK=_BLOCK,
        num_warps=8,
    )


def spread_(rows: Tensor, spans: Sequence[tuple[int, int]], total: Tensor) -> None:
    """All rows [m, d] become `total` [l] in the columns of the spans."""
    table = _table(tuple(spans), rows.device)
    launch(
        _spread,
        (table.shape[1], triton.cdiv(len(rows), _EACH)),
        (rows, total, table),
        {"workers": len(rows), "stride": rows.stride(0)},
        BLOCK=_BLOCK,
        EACH=_EACH,
        num_warps=8,
    )


def squares(rows: Tensor, center: Tensor) -> Tensor:
    """The sum over rows [m, d] of the squared distance from the center [d], per column."""
    out = torch.empty_like(center)
    width = rows.shape[1]
    launch(
        _squares,
        (triton.cdiv(width, _BLOCK),),
        (rows, center, out),
        {"width": width, "workers": len(rows), "stride": rows.stride(0)},
        BLOCK=_BLOCK,
        num_warps=8,
    )
    return out


@lru_cache(maxsize=1024)
def _table(spans: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """For each program: its first column, its place in the sum, and how many columns it has."""
    found, place = [], 0
    for start, stop in spans:
        for first in range(start, stop, _BLOCK):
            count = min(_BLOCK, stop - first)
            found.append((first, place, count))
            place += count
    return torch.tensor(found, dtype=torch.int64).T.contiguous().to(device)


@triton.jit(do_not_specialize=["workers", "stride"])
def _weigh(rows, weights, table, out, workers, stride, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    j = tl.arange(0, BLOCK)
    mask = j < tl.load(table + 2 * blocks + block)
    place = rows + tl.load(table + block) + j
    step = stride.to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for worker in range(0, workers, 4):  # four rows on their way at a time
        for i in tl.static_range(4):
            here = worker + i < workers
            weight = tl.load(weights + worker + i, mask=here, other=0.0)
            total += weight * tl.load(place, mask=mask & here, other=0.0)
            place += step
    tl.store(out + tl.load(table + blocks + block) + j, total, mask=mask)


@triton.jit(do_not_specialize=["width", "workers", "stride"])
def _squares(rows, center, out, width, workers, stride, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < width
    mean = tl.load(center + j, mask=mask)
    place = rows + j
    step = stride.to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for worker in range(0, workers, 4):  # four rows on their way at a time
        for i in tl.static_range(4):
            here = mask & (worker + i < workers)
            away = tl.where(here, tl.load(place, mask=here, other=0.0) - mean, 0.0)
            total += away * away
            place += step
    tl.store(out + j, total, mask=mask)


@triton.jit(do_not_specialize=["workers", "stride"])
def _spread(rows, total, table, workers, stride, BLOCK: tl.constexpr, EACH: tl.constexpr):
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    j = tl.arange(0, BLOCK)
    mask = j < tl.load(table + 2 * blocks + block)
    value = tl.load(total + tl.load(table + blocks + block) + j, mask=mask)
    place = rows + tl.load(table + block) + j
    for i in tl.static_range(EACH):
        worker = tl.program_id(1) * EACH + i
        tl.store(place + worker.to(tl.int64) * stride, value, mask=mask & (worker < workers))
