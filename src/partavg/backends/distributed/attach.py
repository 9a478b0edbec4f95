"""Partial averaging for a user's own loop, in three lines."""

import atexit
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from time import sleep

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from partavg.backends.combinations import check_fresh, check_needs
from partavg.backends.current_plan import CurrentPlan
from partavg.backends.cutting import Cut, draws_columns
from partavg.backends.distributed.agree import agree
from partavg.backends.distributed.averager import Averager
from partavg.backends.distributed.checks import (
    Group,
    bare,
    check_arguments,
    check_gathering,
    check_parts,
    groups_of,
)
from partavg.backends.distributed.chosen_collectives import collectives, shard_trailer, shares
from partavg.backends.distributed.collectives import (
    Collective,
    MakeTrailer,
)
from partavg.backends.distributed.connections import Connections
from partavg.backends.distributed.likeness import start_alike_
from partavg.backends.distributed.memory_store import check_memory
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.narrow import narrow_type
from partavg.backends.distributed.on_optimizer import on_top_of
from partavg.backends.distributed.optimizers import check_ownership, optimizers_of
from partavg.backends.distributed.rank_plan import RankPlanner, schedule_of
from partavg.backends.distributed.replicas import Manager, Replicas, check_manager
from partavg.backends.distributed.saved import settings_of
from partavg.backends.distributed.scaler import check_scaler
from partavg.backends.distributed.shard_groups import ShardGroups, check_mesh, check_sharded
from partavg.backends.distributed.trailer import Trailer
from partavg.backends.distributed.uneven import Uneven, UnevenTrailer, check_uneven, pace_of
from partavg.backends.distributed.watch import Watch
from partavg.core.abilities import described
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.arguments import check_kind
from partavg.core.local_columns import matches, sharing
from partavg.core.pace import Pace
from partavg.core.plan import check_delay
from partavg.core.solver import Solver
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.own_version import own_version
from partavg.sentences import reason


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    interval: int,
    parts: int | None = None,
    partition: Cut = "channel",
    shuffle: bool = False,
    offsets: Sequence[int] | None = None,
    delay: int = 0,
    mix: float | None = None,
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
    scaler: GradScaler | None = None,
    pace: Pace | int | None = None,
    uneven: bool = False,
    seed: int = 0,
    memory: str = "full",
) -> Averager:
    """Average a model over the ranks of a process group, a part after every step of its optimizer.

    All ranks start from the first one's model. In `interval` steps each of `parts` is averaged
    once; by default there are as many parts as steps, with 1 it is periodic averaging. `partition`
    is a name like "channel" or "strided", "fresh" for columns drawn anew every time, a `Partition`,
    or for each part a list of patterns of names. `offsets` say after which steps, modulo the
    interval, each part is averaged. `delay` lets that many steps pass while an average is on its
    way, `mix` is the share of its own that a rank keeps when it arrives (docs/streaming.md). `wire`
    rounds messages to "bf16", "int8", "int4" or "top-k".
    Float `buffers` are averaged with their "part", at "every" averaging, or stay "local". `local`
    are patterns of names, like "head.*", of parameters and buffers that are never averaged: each
    rank begins and goes on with its own. Ranks count by `weight`. A `solver` goes on top of the
    optimizer, `adapt` changes the interval, `aggregate` is what becomes of the ranks' messages
    instead of their weighted sum. A mesh as `group` is machines × ranks of a machine: inside a
    machine all is averaged after every step. A `mesh` is for a sharded model: the dimension along
    which replicas are averaged, each rank its shard (docs/sharded.md). The solver's `memory` is
    float32 at least and where the model is; "params" keeps it in the parameters' type, "host" in
    the host's memory, "params+host" both. With torchft's `manager`, replicas may come and go
    instead. Of several optimizers the last one's step ends a step of all; those that a GradScaler
    skips are counted if it is given as `scaler`. Ranks may take different numbers of steps: at a
    `pace`, so many of this rank in an interval, or, if `uneven`, some end before others. Without an
    optimizer, call `step` after each of your steps.

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
    shards = None if mesh is None else ShardGroups.of(check_mesh(mesh, group, manager), model)
    if mesh is not None:
        groups = [shards.between, shards.inside] if shards else [mesh.get_group()]
    else:
        groups = [] if manager is not None else groups_of(group)
    try:
        optimizers = optimizers_of(optimizer)
        check_scaler(scaler, optimizers)
        check_arguments(
            weight, buffers, wire, group, adapt, partition,
            delay=delay, shuffle=shuffle, seed=seed, local=local,
        )  # fmt: skip
        check_uneven(pace, uneven, interval, groups, group, manager=manager, adapt=adapt)
        uneven = uneven or pace is not None
        own = on_top_of(optimizers, solver, uneven=uneven)
        check_needs(own, delay=delay, mix=mix, uneven=uneven)
        check_memory(memory, own, fresh=draws_columns(partition))
        schedule = schedule_of(interval, parts, partition, offsets, seed if shuffle else None)
        check_kind("manager", manager, Manager | None, "torchft.Manager(…)")
        if manager is not None:
            check_manager(
                solver=own,
                schedule=schedule,
                delay=delay,
                adapt=adapt,
                wire=wire,
                fresh=draws_columns(partition),
                group=group,
            )
        check_gathering(aggregate, own, group, wire, manager)
        if shards:
            check_sharded(aggregate, adapt, fresh=draws_columns(partition), uneven=uneven)
        check_delay(delay, schedule, buffers)
        check_fresh(partition, own, schedule, delay, adapt)
        module = bare(model, groups[:1] if shards else groups)
        check_parts(schedule.parts, module)
        first = adapt.first(schedule) if adapt else schedule
        row = ModuleRow.of(module, first.parts, sharded=shards is not None)
        check_ownership(optimizers, row.trainable)
        layouts = row.param_columns.layout, row.buffer_columns.layout
        shared = sharing(local, *layouts)
        row.local = shared[0].local | shared[1].local
        planner = RankPlanner(row, shared, partition, buffers, delay, seed, aggregate, mix)
        facts: dict[str, object] = {
            "torch": torch.__version__,
            "partavg": own_version(),
            "interval": schedule.interval,
            "parts": schedule.parts,
            "offsets": schedule.offsets,
            "delay": delay,
            "mix": mix,
            "shuffle": schedule.shuffle,
            "buffers": buffers,
            "local": ", ".join(local),
            "wire": wire,
            "solver": described(own),
            "adapt": adapt,
            "aggregate": described(aggregate),
            "memory": memory,
            "seed": seed if aggregate is not weighted_sum or draws_columns(partition) else None,
            "a model of": row.describe(),
            "placements": row.placements(),
            "partition": planner.whole(schedule).partition.digest()[:12],
            "fresh columns": draws_columns(partition),
            "optimizers": len(optimizers),
            "a scaler": scaler is not None,
            "uneven": uneven,
            "pace": "a number of steps" if isinstance(pace, int) else described(pace),
        }
    except ValueError as error:
        agree(groups, {}, error)
        raise
    except Exception as error:  # which keeps its kind here
        with suppress(ValueError):
            agree(groups, {}, ValueError(f"{type(error).__name__}: {reason(error)}"))
        raise
    words = agree(groups, facts)
    everyone = None
    if shards:
        known = {"its shards at": row.places()}, {"weight": weight}
        everyone = shards.everyone, shards.agree(*known)
    narrow = narrow_type(row, own) if aggregate is weighted_sum else None
    by_thread = WIRE_FORMATS[wire].codec is not None or narrow is not None
    if shards and by_thread:  # from which there is something to tell, while others send as well
        groups = [*groups, shards.inside]
        words += agree(groups[2:], {})
    connections = Connections(groups, words, row.params.device, apart=by_thread, everyone=everyone)
    with connections.telling_why():
        collective: Collective
        if manager is not None:
            own_weight, inside = weight, None  # of those alive, found out with every message
            collective = Replicas(manager, row, weight, facts, shared[1].local)
        else:
            weights = shares(weight, groups)
            own_weight = weights[dist.get_rank(groups[0])] if groups else 1.0
            trailer: MakeTrailer = UnevenTrailer if uneven else Trailer
            if shards:
                trailer = shard_trailer(shards, connections.groups[-1])
            collective, inside = collectives(
                connections.groups, group, wire, own_weight, weights, narrow, trailer
            )
        own_tensors = {name for some in shared for name in some.local}

        def is_local(name: str) -> bool:
            return name in own_tensors or matches(name, local)

        if shards:
            shards.start_alike_(module, is_local)
        else:
            start_alike_(module, groups, is_local)
        row.start_memory_(own, memory)
        if aggregate is not weighted_sum:
            row.remember_start_()
        current = CurrentPlan(schedule, adapt, replace(planner, weight=own_weight))
        _outlive_messages()
        place = dist.get_rank(groups[0]) if groups else 0
        turns = (
            Uneven(collective.trailers, pace_of(pace, interval, groups), place) if uneven else None
        )
        averager = Averager(
            row,
            optimizers,
            current,
            own,
            collective,
            inside,
            connections,
            watch=Watch(module, row, is_local),
            scaler=scaler,
            settings=settings_of(facts, own),
            uneven=turns,
            shards=shards,
        )
        if turns:
            turns.catch_up_before(module, averager.catch_up)
        return averager


@cache
def _outlive_messages() -> None:
    """Let Python end a moment later, so that gloo's threads have forgotten the last message.

    Tensors cannot be forgotten once Python ends: the process would be aborted instead.
    """
    atexit.register(sleep, 0.05)
