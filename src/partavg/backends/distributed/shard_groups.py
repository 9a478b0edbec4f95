"""The ranks of a sharded model: who holds a replica together, and who the same shard."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore

from partavg.backends.distributed.agree import Facts, agree, told_by_all
from partavg.backends.distributed.box import Box, held, is_distributed
from partavg.backends.distributed.likeness import broadcast_, tensors_of
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.sentences import shown
from partavg.torch_internals import group_of, root_ranks, store_of

_REMEDY = (
    "make one mesh, init_device_mesh(…, (replicas, shards), mesh_dim_names=('replicate', "
    "'shard')), shard with mesh=mesh['shard'] and attach with mesh=mesh['replicate']"
)


class Claim(NamedTuple):
    """What a rank says of the ranks around it."""

    between: list[int]
    """Those with which it averages."""
    replica: list[int]
    """Those with which it holds a model; none if its model is not sharded."""
    word: str
    """For the names of groups that it is the first of."""


@dataclass(frozen=True, slots=True)
class ShardGroups:
    """The process groups of this rank, and the modules of its model that FSDP shards."""

    between: dist.ProcessGroup
    """The ranks that hold the same shard of other replicas: it is averaged with theirs."""
    inside: dist.ProcessGroup
    """The ranks that hold this replica together."""
    everyone: dist.ProcessGroup
    """The ranks of all replicas."""
    ranks: tuple[int, ...]
    """Those of all replicas, which are in `everyone`."""
    device: torch.device
    modules: tuple[Any, ...]
    """Those that FSDP shards."""
    made: list[dist.ProcessGroup]
    """Groups that nobody else has."""

    @classmethod
    def of(cls, mesh: DeviceMesh, model: nn.Module) -> Self | None:
        """Those of a model that is averaged along a mesh; None if it is not sharded."""
        modules = _fsdp_modules(model)
        for module in modules:
            module.reshard()
        between, own = mesh.get_group(), _own_mesh(model)
        replica = sorted(own.mesh.flatten().tolist()) if own else []
        peers = dist.get_process_group_ranks(between)
        claims = _told(root_ranks(mesh), Claim(peers, replica, token_hex(8)))
        _check(claims)
        if own is None:
            return None
        ranks = sorted(rank for member in replica for rank in claims[member].between)
        made: list[dist.ProcessGroup] = []
        if own.ndim == 1:
            inside = own.get_group()
        else:
            inside = _made(replica, f"{claims[replica[0]].word}/inside", made)
        everyone = dist.group.WORLD
        if everyone is None or len(ranks) < dist.get_world_size():
            everyone = _made(ranks, f"{claims[ranks[0]].word}/everyone", made)
        device = torch.device(mesh.device_type)
        return cls(between, inside, everyone, tuple(ranks), device, modules, made)

    @property
    def peers(self) -> list[int]:
        """The ranks of `between`."""
        return dist.get_process_group_ranks(self.between)

    def places_inside(self) -> list[int]:
        """Where the ranks of `inside` are among those of all replicas."""
        return [self.ranks.index(rank) for rank in dist.get_process_group_ranks(self.inside)]

    def agree(self, shards: Facts, replica: Facts) -> str:
        """Raise a ValueError on all ranks unless all know the same of a shard, and of a replica.

        What comes back is a word that everyone knows.
        """
        error, word = None, ""
        told: list[tuple[dist.ProcessGroup, Facts]] = [
            (self.between, shards),
            (self.inside, replica),
            (self.everyone, {}),
        ]
        for group, facts in told:
            try:
                word = agree([group], facts, error)[0]
            except ValueError as problem:
                error = problem
        if error:
            raise error
        return word

    @torch.no_grad()
    def start_alike_(self, model: nn.Module, is_local: Callable[[str], bool]) -> None:
        """Give all replicas the model of the first, shard by shard, but for what is local to one.

        What several ranks of a replica hold alike is that of the first of them.
        """
        tensors = tensors_of(model)
        own = {name: Box.of(tensor) for name, tensor in tensors.items()}
        said = told_by_all(own, self.inside)
        for name, tensor in tensors.items():
            here = held(tensor)
            boxes = [boxes[name] for boxes in said]
            for box in {box: None for box in boxes if boxes.count(box) > 1}:
                mine = box == own[name]
                _broadcast_(
                    here if mine else here.new_empty(box.sizes), boxes.index(box), self.inside
                )
            if not is_local(name):
                _broadcast_(here, 0, self.between)

    def reshard_(self) -> None:
        """Let FSDP forget the whole parameters that it keeps after some forward passes.

        The next pass would compute with them, whatever became of the shards.
        """
        for module in self.modules:
            module.reshard()

    def close(self) -> None:
        """Let the groups go that were made here."""
        while self.made:
            with suppress(ValueError, AssertionError):  # the user ended all groups already
                dist.destroy_process_group(self.made.pop())


def check_mesh(mesh: object, group: object, manager: object) -> DeviceMesh:
    """The mesh, if replicas can be averaged along it."""
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(
            f"mesh {shown(mesh)} is none: give the dimension of a DeviceMesh along which replicas "
            f"are averaged, like mesh['replicate']"
        )
    if mesh.ndim != 1:
        raise ValueError(
            f"the mesh has {mesh.ndim} dimensions: give the one along which replicas are averaged, "
            f"like mesh['replicate']"
        )
    for name, given in {"a group": group, "a manager": manager}.items():
        if given is not None:
            raise ValueError(
                f"{name} does not go with a mesh, which says already over which ranks replicas are "
                f"averaged: leave one of them out"
            )
    return mesh


def check_sharded(aggregate: Aggregate, adapt: Adapt | None, *, fresh: bool, uneven: bool) -> None:
    """Raise a ValueError for what ranks that hold shards of a model cannot do."""
    refused = {
        "an aggregate other than the mean, which must see whole messages": aggregate
        is not weighted_sum,
        f"{type(adapt).__name__}, which compares whole parts": adapt is not None and adapt.measures,
        "fresh columns, which are drawn from whole tensors": fresh,
        "uneven steps, since its ranks must take each step together": uneven,
    }
    for what, given in refused.items():
        if given:
            raise ValueError(f"a sharded model does not go with {what}: leave one of them out")


def _made(ranks: list[int], word: str, made: list[dist.ProcessGroup]) -> dist.ProcessGroup:
    """A group of some ranks, which is noted; one that torch names must stay until the end."""
    group = group_of(ranks, f"partavg/{word}", dist.get_backend())
    if group is None:
        stays: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True)
        return stays
    made.append(group)
    return group


def _fsdp_modules(model: nn.Module) -> tuple[Any, ...]:
    both = ("reshard", "unshard")
    return tuple(m for m in model.modules() if all(hasattr(m, name) for name in both))


def _own_mesh(model: nn.Module) -> DeviceMesh | None:
    """The mesh of the ranks that hold a model together, if it is sharded."""
    sharded: Any = filter(is_distributed, tensors_of(model).values())
    return max((t.device_mesh for t in sharded), key=lambda mesh: mesh.size(), default=None)


def _told(ranks: Sequence[int], own: Claim) -> dict[int, Claim]:
    """What each of some ranks claims, before they have a group to talk in: through the store."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store outlives restarts
    store = PrefixStore(f"partavg/mesh/{attempt}/{'-'.join(map(str, ranks))}", store_of(None))
    times = (store.add("claims", 1) - 1) // len(ranks)  # all ranks of a mesh come equally often
    store.set(f"{times}/{dist.get_rank()}", json.dumps(own))
    said = store.multi_get([f"{times}/{rank}" for rank in ranks])
    return {rank: Claim(*json.loads(text)) for rank, text in zip(ranks, said, strict=True)}


def _check(claims: Mapping[int, Claim]) -> None:
    """Raise a ValueError, the same on all ranks, unless replicas are sharded alike."""
    for rank, (between, replica, _) in claims.items():
        both = [other for other in replica if other in between and other != rank]
        if both:
            raise ValueError(
                f"the parameters of rank {rank} are sharded or copied over rank {both[0]} as well, "
                f"with which it is to be averaged, so that their gradients are summed after every "
                f"step: shard inside a replica only, fully_shard(model, mesh=mesh['shard'])"
            )
        strange = [other for other in replica if other not in claims]
        if strange:
            raise ValueError(
                f"rank {rank} holds a model with rank {strange[0]}, which is not in the mesh that "
                f"replicas are averaged along, nor in the one it is a dimension of: {_REMEDY}"
            )
        place = replica.index(rank) if replica else 0
        alike = {other: claims[other].replica for other in replica}
        for other, theirs in {**alike, **{o: claims[o].replica for o in between}}.items():
            same = theirs == replica if other in alike else len(theirs) == len(replica)
            if not same or (other in between and theirs and theirs.index(other) != place):
                raise ValueError(
                    f"rank {rank} holds a model with ranks {replica or 'of none'}, rank {other} "
                    f"with {theirs or 'none'}: {_REMEDY}"
                )


def _broadcast_(tensor: Tensor, source: int, group: dist.ProcessGroup) -> None:
    """Give a tensor the numbers that it has on a rank of a group."""
    if tensor.numel():
        broadcast_(tensor, source, group)
