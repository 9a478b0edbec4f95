"""What the tests of all frameworks have in common: ranks as torchrun starts them, and the twin."""

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler

import partavg

RANKS = 2


def as_torchrun(rank: int) -> None:
    """Make this process, whose group exists already, look as if torchrun had started it."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    all_alike = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "TORCHELASTIC_RUN_ID": "test"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}  # not used: nobody connects
    os.environ.update({name: str(value) for name, value in (own | all_alike | address).items()})
    warnings.simplefilter("ignore")
    for name in ("transformers", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def twin(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    options: dict[str, Any],
    *,
    accumulate: int = 1,
    clip: float = 0.0,
    rates: torch.optim.lr_scheduler.LRScheduler | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scaler: GradScaler | None = None,
) -> dict[str, Tensor]:
    """The model after a plain loop with `partavg.attach` over the same batches."""
    own = {**options, "scaler": scaler} if scaler else options
    scaler = scaler or GradScaler("cpu", enabled=False)
    with partavg.attach(model, optimizer, **own):
        for first in range(0, len(batches), accumulate):
            optimizer.zero_grad()
            for batch in batches[first : first + accumulate]:
                with context():
                    loss = loss_of(model, batch) / accumulate
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            if rates:
                rates.step()
    return copy(model)


def copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def mean_over_ranks(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean of the ranks' models, by nothing but torch."""
    mean = {name: tensor.clone() for name, tensor in model.items()}
    for tensor in mean.values():
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
    return mean


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two models."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def apart(model: dict[str, Tensor]) -> float:
    """How far this rank's model is from the mean."""
    return distance(model, mean_over_ranks(model))
