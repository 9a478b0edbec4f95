"""Partial averaging for a user's own loop, in three lines."""

import atexit
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from time import sleep

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from partavg.backends.current_plan import CurrentPlan
from partavg.backends.distributed.agree import agree
from partavg.backends.distributed.averager import Averager
from partavg.backends.distributed.collectives import AcrossMachines, AllReduce, Collective, NoOthers
from partavg.backends.distributed.compressed import Compressed
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.on_optimizer import on_top_of
from partavg.backends.distributed.replicas import Manager, Replicas
from partavg.backends.distributed.shard_groups import ShardGroups, check_mesh
from partavg.backends.distributed.shard_trailer import ShardTrailer
from partavg.backends.planner import Planner, check_aggregate, check_needs, check_recut
from partavg.backends.rank_failure import RollCall
from partavg.core.abilities import abilities, described, name_of
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.local_columns import Sharing, matches, sharing
from partavg.core.partition import Partition
from partavg.core.plan import Plan, check_delay
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.wire_formats import WIRE_FORMATS

Group = dist.ProcessGroup | DeviceMesh


def attach(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    interval: int,
    parts: int | None = None,
    partition: str | Partition = "channel",
    shuffle: bool = False,
    delay: int = 0,
    wire: str = "full",
    buffers: str = "part",
    local: Sequence[str] = (),
    weight: float = 1.0,
    solver: Solver | None = None,
    adapt: Adapt | None = None,
    aggregate: Aggregate = weighted_sum,
    group: Group | None = None,
    mesh: DeviceMesh | None = None,
    manager: Manager | None = None,
    seed: int = 0,
) -> Averager:
    """Average a model over the ranks of a process group, a part after every step of its optimizer.

    All ranks start from the first one's model. In `interval` steps each of `parts` is averaged
    once; by default there are as many parts as steps, with 1 it is periodic averaging. `delay` lets
    that many steps pass while an average is on its way, `wire` rounds messages to "bf16" or "int8".
    Float `buffers` are averaged with their "part", at "every" averaging, or stay "local". `local`
    are patterns of names, like "head.*", of parameters and buffers that are never averaged: each
    rank begins and goes on with its own. Ranks count by `weight`. A `solver` goes on top of the
    optimizer, `adapt` changes the interval, `aggregate` is what becomes of the ranks' messages
    instead of their weighted sum. A mesh as `group` is machines × ranks of a machine: inside a
    machine all is averaged after every step. A `mesh` is for a sharded model: the dimension along
    which replicas are averaged, each rank its own shard of every part. With torchft's `manager`,
    replicas may come and go instead. Without an optimizer, call `step` after each of your steps.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with attach(model, optimizer, interval=2) as averager:
    ...     for _ in range(4):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(1, 2)).sum().backward()
    ...         optimizer.step()
    >>> averager.steps
    4
    >>> dist.destroy_process_group()
    """
    shards = ShardGroups.of(check_mesh(mesh, group, manager), model) if mesh is not None else None
    groups = [] if manager else _groups(group, mesh, shards)
    try:
        _check(weight, buffers, wire, group, adapt, partition)
        own = on_top_of(optimizer, solver)
        check_needs(own, delay=delay)
        _check_manager(manager, group, wire, delay, adapt, own)
        _check_gathering(aggregate, own, group, wire, manager)
        if shards:
            _check_sharded(adapt, aggregate)
        schedule = Schedule(
            interval, interval if parts is None else parts, seed if shuffle else None
        )
        check_delay(delay, schedule, buffers)
        parts_now = (adapt.first(schedule) if adapt else schedule).parts
        row = ModuleRow.of(model, parts_now, sharded=shards is not None)
        layouts = row.param_columns.layout, row.buffer_columns.layout
        shared = sharing(local, *layouts)
        row.local = shared[0].local
        planner = _Planner(row, shared, partition, buffers, delay, seed, aggregate)
        facts: dict[str, object] = {
            "torch": torch.__version__,
            "partavg": version("partavg"),
            "interval": schedule.interval,
            "parts": schedule.parts,
            "delay": delay,
            "shuffle": schedule.shuffle,
            "buffers": buffers,
            "local": ", ".join(local),
            "wire": wire,
            "solver": described(own),
            "adapt": adapt,
            "aggregate": described(aggregate),
            "seed": seed if aggregate is not weighted_sum else None,
            "a model of": row.describe(),
            "placements": row.placements(),
            "partition": planner.whole(schedule).partition.digest()[:12],
        }
    except ValueError as error:
        agree(groups, {}, error)
        raise
    agree(groups, facts)
    if shards:
        shards.agree({"its shards at": row.places()}, {"weight": weight})
    collective: Collective
    inside: AllReduce | None
    if manager:
        own_weight, inside = weight, None  # of those alive, found out with every message
        collective = Replicas(manager, row, weight, facts)
    else:
        own_weight = weight / _sum(weight, groups)
        collective, inside = _collectives(groups, group, shards, wire, own_weight)
    own_tensors = {name for some in shared for name in some.local}

    def is_local(name: str) -> bool:
        return name in own_tensors or matches(name, local)

    if shards:
        shards.start_alike_(model, is_local)
    else:
        _start_alike(model, groups, is_local)
    row.start_memory_(own)
    if aggregate is not weighted_sum:
        row.remember_start_()
    current = CurrentPlan(schedule, adapt, replace(planner, weight=own_weight))
    rolls = [RollCall.of(peers) for peers in ([shards.everyone] if shards else groups)]
    _outlive_messages()
    return Averager(row, optimizer, current, own, collective, inside, rolls, shards)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Makes plans whose spans each lie within one tensor of the model."""

    row: ModuleRow
    sharing: tuple[Sharing, Sharing]
    partition: str | Partition
    buffers: str
    delay: int
    seed: int
    aggregate: Aggregate
    weight: float = 1.0
    """Of this rank, where those of all sum to 1."""

    def whole(self, schedule: Schedule) -> Plan:
        """The plan of the whole model, which all ranks have in common."""
        return Planner(
            *self.sharing,
            self.partition,
            self.buffers,
            self.row.params.new_full((1,), self.weight),
            delay=self.delay,
            seed=self.seed,
            aggregate=self.aggregate,
        )(schedule)

    def __call__(self, schedule: Schedule) -> Plan:
        """The plan of what is held here."""
        params, buffers, plan = (
            self.row.param_columns,
            self.row.buffer_columns,
            self.whole(schedule),
        )
        cut = plan.partition
        parts = tuple(map(params.cut, cut.parts))
        return replace(
            plan,
            partition=Partition(params.held.size, parts, params.cut(cut.local)),
            buffer_parts=tuple(map(buffers.cut, plan.buffer_parts)),
            local_buffers=buffers.cut(plan.local_buffers),
        )


def _groups(
    group: Group | None, mesh: DeviceMesh | None, shards: ShardGroups | None
) -> list[dist.ProcessGroup]:
    """The group of all ranks, or between machines and inside one; none for a process alone."""
    if shards:
        return [shards.between, shards.inside]
    if mesh is not None:
        return [mesh.get_group()]
    if isinstance(group, DeviceMesh):
        if group.ndim != 2:
            raise ValueError(
                f"the mesh has {group.ndim} dimensions: give it two, machines × ranks of a machine"
            )
        return group.get_all_groups()
    if not dist.is_initialized():
        warnings.warn(
            "torch.distributed is not set up, so this process trains alone: start with torchrun "
            "and call torch.distributed.init_process_group()",
            stacklevel=3,
        )
        return []
    assert dist.group.WORLD is not None
    return [group or dist.group.WORLD]


def _check(
    weight: float,
    buffers: str,
    wire: str,
    group: Group | None,
    adapt: Adapt | None,
    partition: str | Partition,
) -> None:
    if not 0 < weight < math.inf:
        raise ValueError(f"weight {weight} makes no sense: use a number above 0")
    if buffers == "recompute":
        raise ValueError("buffers 'recompute' is the simulator's: use part, every or local")
    if wire not in WIRE_FORMATS:
        raise ValueError(f"wire {wire!r} is not known: use {', '.join(WIRE_FORMATS)}")
    if WIRE_FORMATS[wire].codec and isinstance(group, DeviceMesh):
        raise ValueError(f"wire {wire!r} does not go with a mesh yet: use full")
    check_recut(adapt, partition)


def _check_manager(
    manager: Manager | None,
    group: Group | None,
    wire: str,
    delay: int,
    adapt: Adapt | None,
    solver: Solver,
) -> None:
    """Raise a ValueError for what replicas that come and go cannot do."""
    refused = {
        "a group": group is not None,
        f"wire {wire!r}": wire != "full",
        f"delay {delay}": delay,
        f"adapt {type(adapt).__name__}": adapt,
        f"solver {name_of(solver)}": not abilities(solver).renewed_by_averaging,
    }
    for what, given in refused.items():
        if manager and given:
            raise ValueError(
                f"{what} does not go with a manager: replicas that return would not know what the "
                f"others remember; leave one of them out"
            )


def _check_gathering(
    aggregate: Aggregate, solver: Solver, group: Group | None, wire: str, manager: Manager | None
) -> None:
    """Raise a ValueError for collectives over which whole messages cannot be collected."""
    check_aggregate(aggregate, solver)
    refused = {"a mesh": isinstance(group, DeviceMesh), f"wire {wire!r}": wire != "full",
               "a manager": manager is not None}  # fmt: skip
    for what, given in refused.items():
        if given and aggregate is not weighted_sum:
            raise ValueError(
                f"{what} does not go with an aggregate of your own, which must see whole messages "
                f"of all ranks: leave one of them out"
            )


def _check_sharded(adapt: Adapt | None, aggregate: Aggregate) -> None:
    """Raise a ValueError for what ranks that see a shard of a message cannot do."""
    if aggregate is not weighted_sum:
        raise ValueError(
            "a sharded model does not go with an aggregate of your own, which must see whole "
            "messages: leave the aggregate out"
        )
    if adapt and adapt.measures:
        raise ValueError(
            f"a sharded model does not go with {type(adapt).__name__}, which compares whole parts, "
            f"and ranks hold shards of them: use PostLocal or AdaComm"
        )


@cache
def _outlive_messages() -> None:
    """Let Python end a moment later, so that gloo's threads have forgotten the last message.

    Tensors cannot be forgotten once Python ends: the process would be aborted instead.
    """
    atexit.register(sleep, 0.05)


def _sum(weight: float, groups: Sequence[dist.ProcessGroup]) -> float:
    """The sum over the ranks, or over the machines, by which weights are divided."""
    weights = [weight]
    for group in groups[:1]:
        weights *= group.size()
        dist.all_gather_object(weights, weight, group=group)
    return sum(weights)


def _collectives(
    groups: Sequence[dist.ProcessGroup],
    group: Group | None,
    shards: ShardGroups | None,
    wire: str,
    weight: float,
) -> tuple[Collective, AllReduce | None]:
    """How averages are made, and those inside a machine or a sharded replica."""
    codec = WIRE_FORMATS[wire].codec
    if shards:
        inside = AllReduce(shards.inside)
        inside.trailer.strict = False  # other replicas must hear of it too

        def trailer(*_: object) -> ShardTrailer:
            return ShardTrailer(shards)

        if codec:
            return Compressed(shards.between, codec, weight, trailer), inside
        return AllReduce(shards.between, trailer), inside
    if isinstance(group, DeviceMesh):
        inside = AllReduce(groups[1])
        inside.trailer.strict = False  # other machines must hear of it too
        return AcrossMachines(group), inside
    if not groups:
        return NoOthers(), None
    return (Compressed(groups[0], codec, weight) if codec else AllReduce(groups[0])), None


@torch.no_grad()
def _start_alike(
    model: nn.Module, groups: Sequence[dist.ProcessGroup], is_local: Callable[[str], bool]
) -> None:
    """Give all ranks the model of the first, but for what is local to a rank, or to a machine."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for group, inside in zip(groups, (False, True), strict=False):
        source = dist.get_global_rank(group, 0)
        for tensor in [t for name, t in tensors.items() if inside or not is_local(name)]:
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, source, group=group)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)
