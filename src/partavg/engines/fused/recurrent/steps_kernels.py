"""Triton kernels for one step of all LSTMs of a layer: of every worker, in every direction.

A program computes some units for some samples of one row, a worker in a direction, and reads the
units' weights once. What belongs to a token is [worker, tokens, direction, …], states are
[row, sample, unit]. Every second step takes the rows in reverse order: the last weights that were
read are still in the cache. Nothing is added up atomically, so that all bits repeat.

Without `no_type_check` the checks of tests would hide one function from another.
"""
# mypy: ignore-errors

from typing import no_type_check

import triton
import triton.language as tl

_SIZES = ["step", "steps", "rows", "count", "sample", "moment"]


@triton.jit
@no_type_check
def _tanh(x):
    """Near 0 by its series, where the difference below would cancel."""
    square = x * x
    series = x * (
        1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * 62 / 2835)))
    )
    return tl.where(square < 0.04, series, 2 * tl.sigmoid(2 * x) - 1)


@triton.jit
@no_type_check
def _whose(step, count, WIDTH: tl.constexpr, SAMPLES: tl.constexpr, UNITS: tl.constexpr):
    """The row, the samples and the units of a program."""
    number = tl.program_id(0)
    number = tl.where(step % 2 == 1, tl.num_programs(0) - 1 - number, number)
    blocks = tl.cdiv(count, SAMPLES)
    n = (number % blocks) * SAMPLES + tl.arange(0, SAMPLES)
    number = number // blocks
    across: tl.constexpr = (WIDTH + UNITS - 1) // UNITS
    j = (number % across) * UNITS + tl.arange(0, UNITS)
    return (number // across).to(tl.int64), n, j


@triton.jit
@no_type_check
def _places(row, n, step, steps, count, sample, moment, WAYS: tl.constexpr):
    """Where the samples' tokens are at a step of their direction, and how far on the next is."""
    worker, way = row // WAYS, row % WAYS
    ahead = 1 - 2 * way
    time = way * (steps - 1) + ahead * step
    token = worker * count * steps + n * sample + time * moment
    return token * WAYS + way, ahead * moment * WAYS


@triton.jit(do_not_specialize=_SIZES)
@no_type_check
def step_forward(
    given,
    weight,
    bias,
    before,
    cells,
    gates,
    outputs,
    step,
    steps,
    rows,
    count,
    sample,
    moment,
    WAYS: tl.constexpr,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    SAMPLES: tl.constexpr,
    UNITS: tl.constexpr,
    DEEP: tl.constexpr,
):
    """The gates of a step, its outputs, and the states before the next."""
    row, n, j = _whose(step, count, WIDTH, SAMPLES, UNITS)
    place, ahead = _places(row, n, step, steps, count, sample, moment, WAYS)
    mask = (n < count)[:, None] & (j < WIDTH)[None, :]
    gate = place[:, None] * (4 * WIDTH) + j[None, :]
    given_into = tl.load(given + gate, mask=mask, other=0.0)
    given_forget = tl.load(given + gate + WIDTH, mask=mask, other=0.0)
    given_new = tl.load(given + gate + 2 * WIDTH, mask=mask, other=0.0)
    given_out = tl.load(given + gate + 3 * WIDTH, mask=mask, other=0.0)
    state = ((step * rows + row) * count + n)[:, None] * WIDTH + j[None, :]
    cell = tl.load(cells + state, mask=mask, other=0.0)
    into = tl.zeros((SAMPLES, UNITS), dtype=tl.float32)
    forget = tl.zeros((SAMPLES, UNITS), dtype=tl.float32)
    new = tl.zeros((SAMPLES, UNITS), dtype=tl.float32)
    out = tl.zeros((SAMPLES, UNITS), dtype=tl.float32)
    for first in range(0, WIDTH, DEEP):
        k = first + tl.arange(0, DEEP)
        there = (n < count)[:, None] & (k < WIDTH)[None, :]
        hidden = tl.load(before + place[:, None] * WIDTH + k[None, :], mask=there, other=0.0)
        own = weight + (row * (4 * WIDTH) + j)[None, :] * WIDTH + k[:, None]
        inside = (k < WIDTH)[:, None] & (j < WIDTH)[None, :]
        w = tl.load(own, mask=inside, other=0.0)
        into = tl.dot(hidden, w, into, input_precision=PRECISION)
        w = tl.load(own + WIDTH * WIDTH, mask=inside, other=0.0)
        forget = tl.dot(hidden, w, forget, input_precision=PRECISION)
        w = tl.load(own + 2 * WIDTH * WIDTH, mask=inside, other=0.0)
        new = tl.dot(hidden, w, new, input_precision=PRECISION)
        w = tl.load(own + 3 * WIDTH * WIDTH, mask=inside, other=0.0)
        out = tl.dot(hidden, w, out, input_precision=PRECISION)
    into += given_into.to(tl.float32)
    forget += given_forget.to(tl.float32)
    new += given_new.to(tl.float32)
    out += given_out.to(tl.float32)
    if BIAS:
        own = bias + row * (4 * WIDTH) + j
        into += tl.load(own, mask=j < WIDTH, other=0.0)[None, :]
        forget += tl.load(own + WIDTH, mask=j < WIDTH, other=0.0)[None, :]
        new += tl.load(own + 2 * WIDTH, mask=j < WIDTH, other=0.0)[None, :]
        out += tl.load(own + 3 * WIDTH, mask=j < WIDTH, other=0.0)[None, :]
    into, forget = tl.sigmoid(into), tl.sigmoid(forget)
    new, out = _tanh(new), tl.sigmoid(out)
    kind = gates.dtype.element_ty
    tl.store(gates + gate, into.to(kind), mask=mask)
    tl.store(gates + gate + WIDTH, forget.to(kind), mask=mask)
    tl.store(gates + gate + 2 * WIDTH, new.to(kind), mask=mask)
    tl.store(gates + gate + 3 * WIDTH, out.to(kind), mask=mask)
    cell = forget * cell + into * new
    tl.store(cells + state + rows.to(tl.int64) * count * WIDTH, cell, mask=mask)
    hidden = (out * _tanh(cell)).to(kind)
    unit = place[:, None] * WIDTH + j[None, :]
    tl.store(outputs + unit, hidden, mask=mask)
    tl.store(before + unit + ahead * WIDTH, hidden, mask=mask & (step + 1 < steps))


@triton.jit(do_not_specialize=_SIZES)
@no_type_check
def step_backward(
    outer,
    last,
    weight,
    gates,
    cells,
    cell_grad,
    grads,
    step,
    steps,
    rows,
    count,
    sample,
    moment,
    WAYS: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTER: tl.constexpr,
    LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    SAMPLES: tl.constexpr,
    UNITS: tl.constexpr,
    DEEP: tl.constexpr,
):
    """The gradients of a step's gates before their sigmoids, and of the cells before it."""
    row, n, j = _whose(step, count, WIDTH, SAMPLES, UNITS)
    place, ahead = _places(row, n, step, steps, count, sample, moment, WAYS)
    mask = (n < count)[:, None] & (j < WIDTH)[None, :]
    gate = place[:, None] * (4 * WIDTH) + j[None, :]
    kept_into = tl.load(gates + gate, mask=mask, other=0.0)
    kept_forget = tl.load(gates + gate + WIDTH, mask=mask, other=0.0)
    kept_new = tl.load(gates + gate + 2 * WIDTH, mask=mask, other=0.0)
    kept_out = tl.load(gates + gate + 3 * WIDTH, mask=mask, other=0.0)
    state = (row * count + n)[:, None] * WIDTH + j[None, :]
    size = rows.to(tl.int64) * count * WIDTH
    before = tl.load(cells + step * size + state, mask=mask, other=0.0)
    after = tl.load(cells + (step + 1) * size + state, mask=mask, other=0.0)
    cell = tl.load(cell_grad + state, mask=mask, other=0.0)
    if LAST:
        hidden = tl.load(last + state, mask=mask, other=0.0).to(tl.float32)
    else:
        hidden = tl.zeros((SAMPLES, UNITS), dtype=tl.float32)
        for first in range(0, 4 * WIDTH, DEEP):
            k = first + tl.arange(0, DEEP)
            there = (n < count)[:, None] & (k < 4 * WIDTH)[None, :]
            known = grads + (place + ahead)[:, None] * (4 * WIDTH) + k[None, :]
            grad = tl.load(known, mask=there, other=0.0)
            own = weight + (row * (4 * WIDTH) + k)[:, None] * WIDTH + j[None, :]
            w = tl.load(own, mask=(k < 4 * WIDTH)[:, None] & (j < WIDTH)[None, :], other=0.0)
            hidden = tl.dot(grad, w, hidden, input_precision=PRECISION)
    if OUTER:
        unit = place[:, None] * WIDTH + j[None, :]
        hidden += tl.load(outer + unit, mask=mask, other=0.0).to(tl.float32)
    into, forget = kept_into.to(tl.float32), kept_forget.to(tl.float32)
    new, out = kept_new.to(tl.float32), kept_out.to(tl.float32)
    tanh = _tanh(after)
    cell += hidden * out * (1 - tanh * tanh)
    kind = grads.dtype.element_ty
    tl.store(grads + gate, (cell * new * into * (1 - into)).to(kind), mask=mask)
    grad_forget = cell * before * forget * (1 - forget)
    tl.store(grads + gate + WIDTH, grad_forget.to(kind), mask=mask)
    tl.store(grads + gate + 2 * WIDTH, (cell * into * (1 - new * new)).to(kind), mask=mask)
    tl.store(grads + gate + 3 * WIDTH, (hidden * tanh * out * (1 - out)).to(kind), mask=mask)
    tl.store(cell_grad + state, cell * forget, mask=mask)
