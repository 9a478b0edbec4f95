"""Sharded models: each rank averages its shard, and the result is that of unsharded workers."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed import sharded_loops as loops
from tests.backends.distributed.loops import distance
from tests.ranks import Ranks

import partavg
from partavg import Partition, Span
from partavg.backends.distributed.box import Box, held
from partavg.core.adapt import AdaComm, PostLocal
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import fedavgm
from partavg.solvers.scaffold import SCAFFOLD

SGD = ("SGD", {"momentum": 0.9})
ADAMW = ("AdamW", {"weight_decay": 0.1})
DILOCO = fedavgm(lr=0.7, momentum=0.9, nesterov=True)


def cut(hidden: int) -> Partition:
    """Three parts of the whole model, cut in the middle of rows."""
    size = sum(tensor.numel() for tensor in loops.model(hidden).parameters())
    return Partition(size, ((Span(0, 13), Span(44, 61)), (Span(13, 44),), (Span(61, size),)))


CASES: dict[str, tuple[dict[str, Any], tuple[str, dict[str, Any]]]] = {
    "plain": ({"interval": 3}, SGD),
    "periodic": ({"interval": 3, "parts": 1}, ADAMW),
    "by layer": ({"interval": 4, "partition": "layer"}, ADAMW),
    "blocks": ({"interval": 3, "partition": "blocks", "shuffle": True}, SGD),
    "own partition": ({"interval": 3, "partition": cut(7)}, SGD),
    "own partition of 10": ({"interval": 3, "partition": cut(10)}, SGD),
    "diloco": ({"interval": 3, "solver": DILOCO}, ADAMW),
    "periodic diloco": ({"interval": 3, "parts": 1, "solver": DILOCO}, ADAMW),
    "scaffold": ({"interval": 3, "solver": SCAFFOLD()}, SGD),
    "fedprox": ({"interval": 3, "solver": FedProx(0.3)}, ADAMW),
    "delay": ({"interval": 4, "parts": 2, "delay": 1, "solver": DILOCO}, ADAMW),
    "local": ({"interval": 3, "local": ["3.*"]}, SGD),
    "post-local": ({"interval": 3, "adapt": PostLocal(2)}, SGD),
    "adacomm": ({"interval": 4, "adapt": AdaComm(4)}, SGD),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "own partition of 10"])
def test_fully_sharded_replicas_are_unsharded_workers(four: Ranks, name: str) -> None:
    check(four(loops.compared, loops.fully_sharded, *CASES[name]), alike=name != "local")


@pytest.mark.parametrize(
    "name", ["plain", "diloco", "scaffold", "fedprox", "delay", "own partition of 10"]
)
def test_tensor_parallel_replicas_are_unsharded_workers(four: Ranks, name: str) -> None:
    check(four(loops.compared, loops.tensor_parallel, *CASES[name]))


def check(answers: list[Any], *, alike: bool = True) -> None:
    """Every rank's model after every step is that of its unsharded worker, and all end alike."""
    for rank, (found, _) in enumerate(answers):
        expected = answers[rank - rank % 2][1]
        assert len(found) == len(expected) == loops.STEPS + 1
        for one, other in zip(found, expected, strict=True):
            assert distance(one, other) < 1e-9
        apart = [distance(*states) for states in zip(found, answers[0][0], strict=True)]
        assert max(apart) > 1e-6 or rank < 2, "replicas train apart"
        assert apart[-1] < 1e-12 or not alike


def boxes(rank: int, shape: tuple[int, ...]) -> list[tuple[str, bool]]:
    """Whether what a rank holds of each tensor is what its box says."""
    net = loops.both(rank, loops.mesh_of(*shape))
    found = []
    for name, tensor in net.named_parameters():
        box, whole, here = Box.of(tensor), loops.whole(tensor), held(tensor)
        cut = tuple(slice(a, a + n) for a, n in zip(box.offsets, box.sizes, strict=True))
        places = torch.arange(whole.numel()).view(whole.shape)[cut].flatten().tolist()
        count = [box.before(place) for place in [*places, whole.numel()]]
        found.append((name, torch.equal(whole[cut], here) and count == list(range(len(count)))))
    return found


def test_boxes_are_where_fsdp_and_tensor_parallelism_put_shards(four: Ranks) -> None:
    for found in four(boxes, (1, 2, 2)):
        assert found
        assert all(right for _, right in found), found


def three_dimensions(rank: int, shape: tuple[int, ...]) -> list[loops.State]:
    mesh = loops.mesh_of(*shape)
    net = loops.both(rank, mesh)
    optimizer = loops.optimizer_of(net, ADAMW)
    replica = mesh["replicate"].get_local_rank()
    numbers = torch.arange(4) + 8 * replica + 4 * mesh["shard"].get_local_rank()
    with partavg.attach(
        net, optimizer, interval=3, solver=DILOCO, mesh=mesh["replicate"]
    ) as averager:
        seen = loops.train(net, optimizer, averager, numbers)
    return [*seen, loops.full(net)]


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 2)])
def test_fsdp_over_tensor_parallelism_inside_replicas(four: Ranks, shape: tuple[int, ...]) -> None:
    """The first rank's replica, alone or with another, and the same on two ranks or one."""
    found = four(three_dimensions, shape)
    for states in found:
        assert distance(states[-1], found[0][-1]) < 1e-12
    if shape[0] > 1:
        expected = four(loops.compared, loops.tensor_parallel, *CASES["diloco"])
        for one, other in zip(found, expected, strict=True):
            assert all(distance(*both) < 1e-9 for both in zip(one, other[0], strict=True))


def statistics(rank: int, buffers: str) -> tuple[loops.State, bool]:
    """Batches differ inside a replica, and so do the statistics of BatchNorm until the end."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh, normed=True)
    optimizer = loops.optimizer_of(net, SGD)
    with partavg.attach(
        net, optimizer, interval=4, parts=2, buffers=buffers, mesh=mesh["replicate"]
    ) as averager:
        loops.train(net, optimizer, averager, torch.arange(4) + 4 * rank, until=5)
        own = net[1].running_mean.clone()
        apart = own.clone()
        dist.all_reduce(apart)
        apart = not torch.allclose(own, apart / 4)
    return loops.full(net), apart


@pytest.mark.parametrize("buffers", ["part", "every"])
def test_statistics_end_alike_inside_replicas_as_well(four: Ranks, buffers: str) -> None:
    found = four(statistics, buffers)
    for state, apart in found:
        assert apart
        assert distance(state, found[0][0]) < 1e-12


def used(rank: int) -> float:
    """FSDP keeps the whole parameters of its root after a forward pass without a backward one."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh)
    inputs, _ = loops.batch(torch.arange(4), 0)
    averager = partavg.attach(net, interval=2, mesh=mesh["replicate"])
    with torch.no_grad():
        for parameter in net.parameters():
            held(parameter).add_(rank)
        net(inputs)
    averager.consensus()
    averager.detach()
    twin = loops.model()
    twin.load_state_dict(loops.full(net))
    with torch.no_grad():
        return float((twin(inputs) - net(inputs)).abs().max())


def test_what_fsdp_keeps_whole_is_not_computed_with_any_more(four: Ranks) -> None:
    assert max(four(used)) < 1e-12


def unsharded(rank: int) -> loops.State:
    """A dimension of a mesh is a group like any other."""
    mesh = loops.mesh_of(2, 2)
    torch.manual_seed(rank)
    net = loops.model()
    optimizer = loops.optimizer_of(net, SGD)
    with partavg.attach(net, optimizer, interval=2, mesh=mesh["replicate"]) as averager:
        loops.train(net, optimizer, averager, torch.arange(4) + 4 * rank, until=3)
    return loops.full(net)


def test_models_that_are_not_sharded_may_have_a_mesh(four: Ranks) -> None:
    found = four(unsharded)
    assert distance(found[0], found[2]) == distance(found[1], found[3]) == 0
    assert distance(found[0], found[1]) > 1e-3


def memory(rank: int) -> tuple[int, int, int]:
    """Numbers that a rank's solver remembers, that it sends in a cycle, and that its model has."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh)
    optimizer = loops.optimizer_of(net, SGD)
    averager = partavg.attach(net, optimizer, interval=3, solver=DILOCO, mesh=mesh["replicate"])
    loops.train(net, optimizer, averager, torch.arange(4) + 4 * rank, until=3)
    entries = averager.state_dict()["memory"]["anchor"].values()
    averager.detach()
    remembered = sum(held(entry).numel() for entry in entries)
    return remembered, averager.bytes // 8, sum(p.numel() for p in net.parameters())


def test_memory_and_messages_are_those_of_a_shard(four: Ranks) -> None:
    found = four(memory)
    for first, second in (found[:2], found[2:]):
        assert first[0] + second[0] == first[1] + second[1] == first[2]
