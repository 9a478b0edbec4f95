"""Models made the same on all ranks: at the start, and what averaging does not touch at the end."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partavg.backends.distributed.box import held
from partavg.backends.distributed.module_row import ModuleRow

_CHUNK = 1 << 22  # bytes that are looked at together


@torch.no_grad()
def start_alike_(
    model: nn.Module, groups: Sequence[dist.ProcessGroup], is_local: Callable[[str], bool]
) -> None:
    """Give all ranks the model of the first, but for what is local to a rank, or to a machine."""
    for group, inside in zip(groups, (False, True), strict=False):
        for name, tensor in tensors_of(model).items():
            if inside or not is_local(name):
                broadcast_(held(tensor), 0, group)


def untouched(
    model: nn.Module, row: ModuleRow, is_local: Callable[[str], bool]
) -> dict[str, Tensor]:
    """The tensors of a model's state that are all ranks' and that nobody averages."""
    averaged = {*row.param_columns.layout.names, *row.buffer_columns.layout.names}
    kept = model.state_dict(keep_vars=True).keys()
    return {
        name: tensor
        for name, tensor in tensors_of(model).items()
        if name in kept and name not in averaged and not is_local(name)
    }


@torch.no_grad()
def rest_alike_(
    tensors: Mapping[str, Tensor], groups: Sequence[dist.ProcessGroup], device: torch.device
) -> None:
    """Give all ranks the first one's tensors where some differ; those are looked for first."""
    digest = hashlib.sha256(repr(list(tensors)).encode()).digest()
    for group in groups:
        prints = [_fingerprint(tensor) for tensor in tensors.values()]
        own = torch.tensor([int.from_bytes(digest[:7]), _mix(prints)])
        told = _gathered(group, own.to(device))
        if not bool((told[:, 0] == told[0, 0]).all()):
            raise ValueError(
                "ranks have other frozen parameters or whole-number buffers than each other: "
                "give all the same model"
            )
        if not bool((told[:, 1] == told[0, 1]).all()):
            every = _gathered(group, torch.tensor(prints, device=device))
            apart = (every != every[0]).any(0).tolist()
            for tensor, differs in zip(tensors.values(), apart, strict=True):
                if differs:
                    broadcast_(held(tensor), 0, group)


@torch.no_grad()
def all_alike(
    things: Sequence[Sequence[Tensor]],
    candidates: Tensor,
    groups: Sequence[dist.ProcessGroup],
    device: torch.device,
) -> list[bool]:
    """Which of some things, of several tensors each, are candidates and the same on all ranks."""
    own = torch.tensor([_mix([_fingerprint(each) for each in some]) for some in things])
    same = candidates.cpu()
    own[~same] = -1 - dist.get_rank() if groups else -1
    for group in groups:
        every = _gathered(group, own.to(device))
        same &= (every == every[0]).all(0)
    return same.tolist()


def broadcast_(tensor: Tensor, source: int, group: dist.ProcessGroup) -> None:
    """Give a tensor the numbers that it has on a rank of a group."""
    whole = tensor.contiguous()
    dist.broadcast(whole, group=group, group_src=source)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.copy_(whole)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _gathered(group: dist.ProcessGroup, own: Tensor) -> Tensor:
    """The whole numbers of all ranks, a row each."""
    rows = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(rows, own, group=group)
    return torch.stack(rows).cpu()


def _fingerprint(tensor: Tensor) -> int:
    """A number that is another one for another tensor, as good as always."""
    sums = [held(tensor).new_zeros((), dtype=torch.int64)]
    for chunk in torch.split(held(tensor).contiguous().view(-1).view(torch.uint8), _CHUNK):
        place = torch.arange(1, len(chunk) + 1, device=chunk.device)
        sums.append((chunk * (place * 0x9E3779B1 % 0xFFFFFFFB)).sum())
    return _mix(torch.stack(sums).tolist())


def _mix(numbers: Sequence[int]) -> int:
    total = 0
    for number in numbers:
        total = (total * 1_000_003 + number) % (1 << 61)
    return total
