"""Which engine is right for a model: decided by trying, because no rule of thumb is."""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from time import perf_counter
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from partavg.core.loop import Batch, Engine
from partavg.core.seeds import OTHERS
from partavg.engines.examine import ONLY_LOOPED, Rows, examine
from partavg.engines.freed_memory import keep_freed_memory
from partavg.engines.fused import Fused
from partavg.engines.fused.precision import Precision, resolve
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.threads import Threaded, why_not
from partavg.engines.vmapped import Vmapped
from partavg.kernels.backend import without_triton
from partavg.registry import check_name
from partavg.sentences import reason, shown

EngineName = Literal["auto", "looped", "threads", "vmapped", "fused"]
_FEW, _MANY = 2, 16  # rows to try a loop and a pass on
_PLENTY = 4  # times the loop's speed: there is no need to import what vmap wants, which takes long
_MOMENT = 0.1  # seconds to spend on timing one engine
_KEPT = 4  # tensors of the parameters' size to leave room for: they, momentum, and two more
_SHARE = 0.85  # of the free memory that may be used


class Choice(NamedTuple):
    """An engine, and why it was taken."""

    name: EngineName
    chunk: int
    reason: str
    precision: Precision = "auto"
    """In which the fused engine computes."""
    deterministic: bool = False
    recompute: bool = False
    """Whether it keeps but few activations, and computes the others twice."""
    draws: tuple[str, ...] = ()
    """The generators that the model draws from by itself."""

    def build(self, model: RowModel) -> Engine:
        """The engine itself."""
        if self.name == "fused":
            return Fused(
                model,
                self.chunk,
                self.precision,
                deterministic=self.deterministic,
                recompute=self.recompute,
            )
        if self.name == "looped":
            return Looped(model, [name for name in self.draws if name in OTHERS])
        if self.name == "threads":
            return Threaded(model, self.chunk)
        return Vmapped(model, self.chunk)


def choose(
    name: str,
    chunk: int,
    model: RowModel,
    start: Rows,
    batch: Batch,
    *,
    precision: Precision = "auto",
    deterministic: bool = False,
) -> Choice:
    """Take the engine called `name`, or for "auto" the fused one on a GPU, else the fastest one.

    `chunk` is the number of workers in one pass; 0 leaves it to be chosen too. An engine other
    than the loop is taken only if it was seen to compute what a loop computes. A model that draws
    random numbers by itself, not by dropout, is for the loop.
    """
    check_engine(name, chunk, precision)
    workers = len(batch.keys)
    few = _rows(start, min(_FEW, workers), apart=0.01)
    if not few[0].is_cuda:
        keep_freed_memory()
    with _exact(few[0].device):
        draws = examine(model, few, batch)
        looped = Choice("looped", 1, "as configured", draws=draws)
        if draws and name != "looped":
            why = f"it draws random numbers from {' and '.join(draws)} {ONLY_LOOPED}"
            if name != "auto":
                raise ValueError(f"engine {name} cannot run this model: {why}; use engine looped")
            looped = looped._replace(reason=why)
        few, expected = _expected(looped.build(model), few, start, batch)
        if looped.draws or name == "looped":
            return looped
        if name == "threads":
            return _in_threads(chunk, model, few, batch, expected)
        why = ""
        if name == "fused" or (name == "auto" and few[0].is_cuda):
            fused = _fused(chunk, model, few, batch, expected, precision, deterministic)
            if isinstance(fused, Choice):
                return fused
            if name == "fused":
                raise ValueError(f"{fused}; use engine vmapped, looped or auto")
            why = f"{fused}; "
        if name == "vmapped":
            if not_vmapped := _problem("vmapped", model, few, batch, expected):
                raise ValueError(f"{not_vmapped}; use engine looped or auto")
            return Choice("vmapped", min(chunk or workers, workers), "as configured")

    def problem(name: EngineName, precision: Precision = "fp32") -> str:
        with _exact(few[0].device):
            return _problem(name, model, few, batch, expected, precision)

    race = _Race(model, start, batch)
    if not few[0].is_cuda:
        wanted = resolve(precision, model.dtype, few[0].device)
        if not problem("fused", wanted):
            race.run(Choice("fused", chunk, "", wanted, deterministic))
        threads = Choice("threads", _threads(chunk, workers), "")
        if threads.chunk > 1 and not why_not(model.skeleton) and not problem("threads"):
            race.run(threads)
    if race.lead < _PLENTY:
        if not_vmapped := problem("vmapped"):
            why += f"{not_vmapped}; "
        else:
            race.run(Choice("vmapped", chunk, ""))
    return race.won(why)


def _fused(
    chunk: int,
    model: RowModel,
    few: Rows,
    batch: Batch,
    expected: "_Trial",
    precision: Precision,
    deterministic: bool,
) -> Choice | str:
    """The fused engine in passes that fit, or why it cannot run a model."""
    with without_triton():  # the kernels are checked in the precision that is wanted
        if why := _problem("fused", model, few, batch, expected):
            return why
    wanted = resolve(precision, model.dtype, few[0].device)
    choice = Choice("fused", chunk, "as configured", wanted, deterministic)
    try:
        fitting = _fitting(choice, model, few, batch, expected)
        if fitting is None and Fused(model, 1).can_recompute:
            fitting = _fitting(choice._replace(recompute=True), model, few, batch, expected)
    except Exception as error:  # what float32 can, a faster precision may not
        return f"engine fused cannot run this model in {wanted}: {reason(error)}"
    return fitting or "engine fused needs more memory than the GPU has for one worker"


def _in_threads(chunk: int, model: RowModel, few: Rows, batch: Batch, expected: "_Trial") -> Choice:
    """Threads, as configured, if they can run a model."""
    problem = "engine threads is for a CPU" if few[0].is_cuda else why_not(model.skeleton)
    problem = problem or _problem("threads", model, few, batch, expected)
    if problem:
        raise ValueError(f"{problem}; use engine looped or auto")
    workers = len(batch.keys)
    return Choice("threads", min(chunk or _threads(0, workers), workers), "as configured")


def _threads(chunk: int, workers: int) -> int:
    """How many threads to take: one for each core that torch uses, unless fewer are asked for."""
    cores = torch.get_num_threads()
    return min(chunk or cores, cores, workers)


def check_engine(
    name: object, chunk: object, precision: object, deterministic: object = False
) -> None:
    """Refuse what is no engine, no number of workers or no precision."""
    if not isinstance(deterministic, bool):
        raise ValueError(f"deterministic = {shown(deterministic)} is not known: use True or False")
    for what, given, known in (
        ("engine", name, get_args(EngineName)),
        ("precision", precision, get_args(Precision)),
    ):
        check_name(what, given if isinstance(given, str) else shown(given), known)
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 0:
        raise ValueError(
            f"chunk = {shown(chunk)} is no number of workers: use 1 or more, or 0 to leave it to "
            f"partavg"
        )


def _expected(engine: Engine, few: Rows, start: Rows, batch: Batch) -> tuple[Rows, "_Trial"]:
    """Rows at which losses are finite, and what a loop computes there."""
    found = _try(engine, few, batch)
    if found.losses.isfinite().all():
        return few, found
    few = _rows(start, len(few[0]))
    found = _try(engine, few, batch)
    if not found.losses.isfinite().all():
        raise ValueError(
            f"the loss of the first batch is {found.losses.tolist()[0]} before any step: look for "
            f"numbers that are not finite in the samples, the parameters and the loss"
        )
    return few, found


def _problem(
    name: EngineName,
    model: RowModel,
    few: Rows,
    batch: Batch,
    expected: "_Trial",
    precision: Precision = "fp32",
) -> str:
    """Why an engine cannot run a model, in a few words; nothing if it can."""
    try:
        found = _try(Choice(name, len(few[0]), "", precision).build(model), few, batch)
        if _agree(expected, found, rounded=precision != "fp32"):
            return ""
        why = "its gradients differ from looped"
    except Exception as error:  # whatever it is, looped can do it
        why = reason(error)
    return f"engine {name} cannot run this model: {why}"


def _fitting(
    choice: Choice, model: RowModel, few: Rows, batch: Batch, expected: "_Trial"
) -> Choice | None:
    """The fused engine in passes as large as the memory allows; None if no worker fits."""
    workers = len(batch.keys)
    if not few[0].is_cuda:
        return choice._replace(chunk=min(choice.chunk or workers, workers))
    device = few[0].device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        found = _try(choice._replace(chunk=len(few[0])).build(model), few, batch)
    except torch.OutOfMemoryError:
        return None
    if not _agree(expected, found, rounded=choice.precision != "fp32"):
        raise ValueError("its gradients differ from looped")
    if choice.chunk:
        return choice._replace(chunk=min(choice.chunk, workers))
    each = (torch.cuda.max_memory_allocated(device) - before) / len(few[0])
    torch.cuda.empty_cache()
    kept = _KEPT * workers * few[0][0].nbytes
    most = int((_SHARE * torch.cuda.mem_get_info(device)[0] - kept) / each)
    if most < 1:
        return None
    passes = -(-workers // most)
    size = -(-workers // passes)
    reason = f"the model's layers are covered; {size} workers in a pass, {choice.precision}"
    reason += ", activations computed twice" if choice.recompute else ""
    return choice._replace(chunk=size, reason=reason)


class _Race:
    """The loop, and those that can run a model too, in passes of the best size."""

    def __init__(self, model: RowModel, start: Rows, batch: Batch) -> None:
        self._given = model, start, batch
        self._best, self._least = Choice("looped", 1, ""), float("inf")
        self._times: list[str] = []

    @cached_property
    def _loop(self) -> float:
        model, start, batch = self._given
        rows = _rows(start, min(_FEW, len(batch.keys)))
        self._least = _seconds(Looped(model, ()), rows, batch)
        self._times.append(f"looped {_milliseconds(self._least)}")
        return self._least

    @property
    def lead(self) -> float:
        """How many times as fast as the loop the fastest one is, as far as they were timed."""
        return self._loop / self._least if self._times else 1.0

    def run(self, engine: Choice) -> None:
        """Time one more."""
        loop, (model, start, batch) = self._loop, self._given
        if engine.name == "threads":
            rows = _rows(start, min(2 * engine.chunk, len(batch.keys)))
            own, least = engine, _seconds(engine.build(model), rows, batch)
        else:
            own, least = _in_passes(engine, model, start, batch, loop)
        self._times.append(f"{engine.name} {_milliseconds(least)}")
        if least < self._least:
            self._best, self._least = own, least

    def won(self, why: str) -> Choice:
        """The fastest one, and why; others may not have been able to take part."""
        if not self._times:
            return self._best._replace(reason=why.removesuffix("; "))
        said = f"{why}{', '.join(self._times)} per worker"
        of_best = {"looped": "", "threads": f"; {self._best.chunk} threads"}
        told = of_best.get(self._best.name, f" in chunks of {self._best.chunk}")
        return self._best._replace(reason=said + told)


def _in_passes(
    engine: Choice, model: RowModel, start: Rows, batch: Batch, loop: float
) -> tuple[Choice, float]:
    """An engine with the best number of workers in a pass, and its seconds per worker."""
    workers = len(batch.keys)
    sizes = [engine.chunk] if engine.chunk else [_MANY, workers]
    passes: dict[int, float] = {}
    for size in sorted({min(size, workers) for size in sizes}):
        if min(passes.values(), default=loop) <= loop:  # a larger pass of a slow engine is slow
            try:
                made = engine._replace(chunk=size).build(model)
                passes[size] = _seconds(made, _rows(start, size), batch)
            except RuntimeError:  # out of memory
                break
    best = min(passes, key=passes.__getitem__, default=1)
    return engine._replace(chunk=best), passes.get(best, float("inf"))


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.2g} ms" if value < 10 else f"{value:.0f} ms"


class _Trial(NamedTuple):
    losses: Tensor
    grads: Tensor
    buffers: Tensor


def _rows(start: Rows, count: int, apart: float = 0.0) -> Rows:
    """That many workers, all at the start or a little apart from it, each elsewhere."""
    params, buffers = (row.expand(count, -1).clone() for row in start)
    noise = torch.randn(params.shape, generator=torch.Generator().manual_seed(0))
    return params.add_(noise.to(params), alpha=apart), buffers


def _try(engine: Engine, rows: Rows, batch: Batch) -> _Trial:
    """Run the engine on the first rows of a batch; nothing is changed."""
    params, buffers = (tensor.clone() for tensor in rows)
    losses, grads = [], []
    for found in engine(params, buffers, batch.some(slice(len(params)))):
        losses.append(found.losses)
        grads.append(torch.cat([piece for _, piece in found.pieces], 1))
    return _Trial(torch.cat(losses), torch.cat(grads), buffers)


def _agree(one: _Trial, other: _Trial, *, rounded: bool = False) -> bool:
    """Equal up to rounding, which a deep network magnifies; a wrong gradient differs by far more.

    Within 2 % in float32, 0.01 % in float64. Where activations are `rounded` to bf16, losses and
    buffers within 10 %, gradients within 50 %: those of ResNet-20 were seen to differ by 30 %.
    """
    tight = torch.finfo(one.grads.dtype).eps ** 0.25
    tolerances = (0.1, 0.5, 0.1) if rounded else (tight, tight, tight)
    return all(
        bool(torch.where(a == b, 0, a - b).norm() <= tolerance * (a[a.isfinite()].norm() + 1e-6))
        for a, b, tolerance in zip(one, other, tolerances, strict=True)
    )


def _exact(device: torch.device) -> AbstractContextManager[None]:
    """Without the 10-bit products that convolutions on a GPU use by default."""
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False)


def _seconds(engine: Engine, rows: Rows, batch: Batch) -> float:
    """The shortest time of an iteration, per row, after a warm-up."""
    params, buffers = rows
    some = batch.some(slice(len(params)))
    times: list[float] = []
    while len(times) < 2 or sum(times[1:]) < _MOMENT:
        began = perf_counter()
        for found in engine(params, buffers, some):
            list(found.pieces)
        if params.is_cuda:
            torch.cuda.synchronize(params.device)
        times.append(perf_counter() - began)
    return min(times[1:]) / len(params)
