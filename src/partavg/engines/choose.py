"""Which engine is right for a model: decided by trying, because no rule of thumb is."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from partavg.core.loop import Batch, Engine
from partavg.engines import remembered
from partavg.engines.choice import Choice, EngineName
from partavg.engines.examine import ONLY_LOOPED, Rows, examine
from partavg.engines.fitting import in_passes, watched
from partavg.engines.freed_memory import keep_freed_memory
from partavg.engines.fused import Fused
from partavg.engines.fused.precision import Precision, resolve
from partavg.engines.model import RowModel
from partavg.engines.race import FEW, Race, rows_of
from partavg.engines.threads import why_not
from partavg.kernels.backend import without_triton
from partavg.registry import check_name
from partavg.sentences import reason, shown

_PLENTY = 4  # times the loop's speed: there is no need to import what vmap wants, which takes long
_COVERED = "the model's layers are covered"
_BEFORE = "computes what the loop computes, as a trial has shown before"


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
    few = rows_of(start, min(FEW, workers), apart=0.01)
    if not few[0].is_cuda:
        keep_freed_memory()
    wanted = resolve(precision, model.dtype, few[0].device)
    fused = Choice("fused", chunk, "as configured" if chunk else _COVERED, wanted, deterministic)
    tries_fused = name == "fused" or (name == "auto" and few[0].is_cuda)
    with _exact(few[0].device):
        key = remembered.fingerprint(fused, model, batch) if tries_fused else None
        if remembered.is_known(key) and (again := _again(fused, model, few, batch)):
            return again
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
        if tries_fused:
            found = _fused(fused, model, few, batch, expected)
            if isinstance(found, Choice):
                if not found.recompute:
                    remembered.remember(key)
                return found
            if name == "fused":
                raise ValueError(f"{found}; use engine vmapped, looped or auto")
            why = f"{found}; "
        if name == "vmapped":
            if not_vmapped := _problem("vmapped", model, few, batch, expected):
                raise ValueError(f"{not_vmapped}; use engine looped or auto")
            return Choice("vmapped", min(chunk or workers, workers), "as configured")

    def problem(name: EngineName, precision: Precision = "fp32") -> str:
        with _exact(few[0].device):
            return _problem(name, model, few, batch, expected, precision)

    race = Race(model, start, batch)
    if not few[0].is_cuda:
        if not problem("fused", wanted):
            race.run(fused)
        threads = Choice("threads", _threads(chunk, workers), "")
        if threads.chunk > 1 and not why_not(model.skeleton) and not problem("threads"):
            race.run(threads)
    if race.lead < _PLENTY:
        if not_vmapped := problem("vmapped"):
            why += f"{not_vmapped}; "
        else:
            race.run(Choice("vmapped", chunk, ""))
    return race.won(why)


def _again(choice: Choice, model: RowModel, few: Rows, batch: Batch) -> Choice | None:
    """The fused engine where a trial of it has succeeded before, if it runs as it did then."""
    try:
        return _fitting(choice._replace(reason=_BEFORE), model, few, batch)
    except Exception:  # whatever it is, a trial says it in the user's words
        return None


def _fused(
    choice: Choice, model: RowModel, few: Rows, batch: Batch, expected: "_Trial"
) -> Choice | str:
    """The fused engine in passes that fit, or why it cannot run a model."""
    with without_triton():  # the kernels are checked in the precision that is wanted
        if why := _problem("fused", model, few, batch, expected):
            return why
    try:
        fitting = _fitting(choice, model, few, batch, expected)
        if fitting is None and Fused(model, 1).can_recompute:
            fitting = _fitting(choice._replace(recompute=True), model, few, batch, expected)
    except Exception as error:  # what float32 can, a faster precision may not
        return f"engine fused cannot run this model in {choice.precision}: {reason(error)}"
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
    few = rows_of(start, len(few[0]))
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
    choice: Choice, model: RowModel, few: Rows, batch: Batch, expected: "_Trial | None" = None
) -> Choice | None:
    """The fused engine in passes as large as the memory allows; None if no worker fits.

    Where nothing is expected, losses must be finite.
    """
    workers, row = len(batch.keys), few[0][0]
    if expected and not row.is_cuda:  # whose memory nobody counts, and float32 has said the rest
        return in_passes(choice, workers, row, 0.0)
    with watched(row.device) as taken:
        try:
            found = _try(choice._replace(chunk=len(few[0])).build(model), few, batch)
        except torch.OutOfMemoryError:
            return None
    if expected is None and not found.losses.isfinite().all():
        raise ValueError("its losses are not finite")
    if expected and not _agree(expected, found, rounded=choice.precision != "fp32"):
        raise ValueError("its gradients differ from looped")
    return in_passes(choice, workers, row, taken.most / len(few[0]))


class _Trial(NamedTuple):
    losses: Tensor
    grads: Tensor
    buffers: Tensor


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
