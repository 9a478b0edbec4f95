"""What each rank keeps for itself beside a framework's checkpoint, which holds the averaged model.

A run that goes on from both is bit-identical to one that was never stopped.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from partavg.backends.distributed import Averager


@dataclass(frozen=True, slots=True)
class OwnState:
    """All that differs between ranks while they train: saved and taken back by each."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    averager: Averager
    scaler: GradScaler | None = None

    def save(self) -> dict[str, Any]:
        """Tensors and plain values, to be written at once."""
        return {
            "ranks": _ranks(),
            "model": own_tensors(self.model),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "averager": self.averager.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    @torch.no_grad()
    def load(self, read: Callable[[int], dict[str, Any] | None]) -> None:
        """Go on from what this rank saved, given how to read what a rank saved, if anything.

        Where there were n other ranks, rank i takes what rank i mod n had, and all begin with the
        average of these models. Where one finds nothing, all begin with the model that they have.
        """
        saved = _found(read)
        if not _everywhere(saved is not None):
            warnings.warn(
                "beside the checkpoint is no state of the ranks that saved it: all begin with its "
                "model, and average as in a new run",
                stacklevel=3,
            )
            return
        assert saved is not None
        for name, tensor in own_tensors(self.model).items():
            tensor.copy_(saved["model"][name])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.averager.load_state_dict(saved["averager"])
        if self.scaler and saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters and buffers, not copied; frozen ones are alike on all ranks."""
    frozen = {name for name, tensor in model.named_parameters() if not tensor.requires_grad}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def write(state: OwnState, folder: str | Path) -> None:
    """Save this rank's state into the folder of a checkpoint, which another rank may make."""
    path = _path(folder, rank())
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state.save(), path)


def read_from(folder: str | Path) -> Callable[[int], dict[str, Any] | None]:
    """How to read what a rank saved into the folder of a checkpoint."""

    def read(number: int) -> dict[str, Any] | None:
        path = _path(folder, number)
        if not path.exists():
            return None
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return saved

    return read


def rank() -> int:
    """The rank of this process; 0 if it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _path(folder: str | Path, number: int) -> Path:
    return Path(folder) / f"partavg-rank{number}.pt"


def _found(read: Callable[[int], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What this rank goes on from: the first rank knows how many there were."""
    own = read(rank())
    if own and own["ranks"] == _ranks():
        return own
    first = read(0)
    return first and read(rank() % first["ranks"])


def _everywhere(here: bool) -> bool:
    if not dist.is_initialized():
        return here
    everywhere = [here] * _ranks()
    dist.all_gather_object(everywhere, here)
    return all(everywhere)
