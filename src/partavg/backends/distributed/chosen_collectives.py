"""The way in which an attached model's messages go, as the arguments of `attach` ask for."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from partavg.backends.distributed.agree import told_by_all
from partavg.backends.distributed.checks import Group
from partavg.backends.distributed.collectives import (
    AcrossMachines,
    AllReduce,
    Collective,
    MakeTrailer,
    NoOthers,
)
from partavg.backends.distributed.compressed import Compressed
from partavg.backends.distributed.narrow import Narrow
from partavg.backends.distributed.shard_groups import ShardGroups
from partavg.backends.distributed.shard_trailer import ShardTrailer
from partavg.backends.distributed.trailer import Trailer
from partavg.core.wire_formats import WIRE_FORMATS


def shares(weight: float, groups: Sequence[dist.ProcessGroup]) -> list[float]:
    """How much each rank counts, or each machine, of all."""
    weights = told_by_all(weight, next(iter(groups), None))
    return [each / sum(weights) for each in weights]


def collectives(
    groups: Sequence[dist.ProcessGroup],
    group: Group | None,
    wire: str,
    weight: float,
    weights: Sequence[float],
    narrow: torch.dtype | None,
    trailer: MakeTrailer,
) -> tuple[Collective, AllReduce | None]:
    """How averages are made, and those inside a machine or a sharded replica."""
    inside = AllReduce(groups[1]) if len(groups) > 1 else None
    if inside:
        inside.trailer.strict = False  # other machines and replicas must hear of it too
    if isinstance(group, DeviceMesh):
        return AcrossMachines(group, groups, weights), inside
    codec = WIRE_FORMATS[wire].codec
    if not groups:
        return NoOthers(), None
    if codec:
        return Compressed(groups[0], codec, weight, trailer), inside
    if narrow:
        return Narrow(groups[0], narrow, weights, trailer), inside
    return AllReduce(groups[0], weights, trailer), inside


def shard_trailer(shards: ShardGroups, inside: dist.ProcessGroup) -> MakeTrailer:
    """What makes the trailers of a sharded model, which tell the others inside a replica, too."""

    def made(peers: Sequence[int], _: int, weights: Sequence[float] | None) -> Trailer:
        return ShardTrailer(shards.ranks, peers, weights, inside)

    return made
