"""Sharded models that cannot be averaged, and trouble of one shard that all ranks must hear of."""

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed import sharded_loops as loops
from tests.outside import Noisy
from tests.ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import partavg
from partavg.backends.distributed.box import held
from partavg.core.adapt import FedLAMA

REPLICATE = r"like mesh\['replicate'\]"


def sharded_over(rank: int, mesh: DeviceMesh, hidden: int = 7) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(rank)
    net: nn.Module = loops.model(hidden)
    fully_shard(net, mesh=mesh)
    return net


def refused(rank: int, case: str) -> None:
    mesh = loops.mesh_of(2, 2)
    net = loops.model() if case == "no mesh" else loops.fully_sharded(rank, mesh)
    options: dict[str, Any] = {"mesh": mesh["replicate"]}
    match case:
        case "two dimensions":
            options = {"mesh": mesh}
        case "no mesh":
            options = {"mesh": "replicate"}
        case "without":
            options = {}
        case "group":
            options["group"] = dist.group.WORLD
        case "hybrid":
            net = sharded_over(rank, mesh)
        case "the world":
            net = sharded_over(rank, loops.mesh_of(4))
        case "its own dimension":
            options["mesh"] = mesh["shard"]
        case "a rank that forgot":
            net = loops.model() if rank == 1 else net
        case "another axis":
            net = sharded_over(rank, mesh["shard"], 10)
            net = loops.tensor_parallel(rank, mesh) if rank > 1 else net
        case "another shard":
            crossed = DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("replicate", "shard"))
            net = loops.tensor_parallel(rank, crossed)
        case "aggregate":
            options["aggregate"] = Noisy()
        case "fedlama":
            options |= {"adapt": FedLAMA(2), "partition": "layer"}
        case "fresh":
            options["partition"] = "fresh"
        case "uneven":
            options["uneven"] = True
        case "weight":
            options["weight"] = 2.0 if rank == 3 else 1.0
    partavg.attach(net, interval=2, **options)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("two dimensions", f"the mesh has 2 dimensions: .*, {REPLICATE}"),
        ("no mesh", "mesh 'replicate' is none: give the dimension of a DeviceMesh"),
        ("without", r".*'0\.weight' is sharded over ranks: .* mesh=mesh\['replicate'\]"),
        ("group", "a group does not go with a mesh"),
        ("hybrid", r"the parameters of rank 0 .* over rank 2 as well.*mesh=mesh\['shard'\]"),
        ("the world", r"the parameters of rank 0 .* over rank 2 as well.*mesh=mesh\['shard'\]"),
        ("its own dimension", "the parameters of rank 0 .* over rank 1 as well"),
        ("a rank that forgot", r"rank 0 holds a model with ranks \[0, 1\], rank 1 with none: make"),
        (
            "another axis",
            r"rank 2 has placements 2 × Shard\(dim=0\) over 2, .*, 3 × whole \(.*, rank 0 has 6 ×",
        ),
        ("another shard", "rank [23] has its shards at .*, rank [01] has"),
        (
            "aggregate",
            ".*does not go with an aggregate other than the mean, which must see whole messages",
        ),
        ("fedlama", ".*does not go with FedLAMA, which compares whole parts"),
        ("fresh", ".*does not go with fresh columns"),
        ("uneven", ".*does not go with uneven steps"),
        ("weight", "rank 3 has weight 2.0, rank 2 has 1.0: start all ranks with the same"),
    ],
)
def test_what_cannot_be_averaged_is_refused_on_all_ranks(
    four: Ranks, case: str, sentence: str
) -> None:
    for done, text in four.answers(refused, case):
        assert not done
        assert re.match(f"ValueError: ({sentence})", text), text


def troubled(rank: int, what: str, wire: str) -> None:
    """A shard of rank 3 goes wrong, about which ranks 0 and 2 get no message."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh)
    averager = partavg.attach(net, interval=2, parts=1, wire=wire, mesh=mesh["replicate"])
    for _ in range(3):
        averager.step()
    if what == "nan" and rank == 3:
        held(net[0].weight).fill_(torch.nan)
    if what == "leaves" and rank % 2:
        averager.consensus()
    averager.step()


@pytest.mark.parametrize("wire", ["full", "int8"])
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("nan", "NotFinite: rank 3 sent a number that is not finite after step 4: the other ranks"),
        ("leaves", "ValueError: rank 0 averages after step 4, rank 1 asks for the consensus after"),
    ],
)
def test_trouble_of_one_shard_is_known_to_all(
    four: Ranks, what: str, sentence: str, wire: str
) -> None:
    for done, text in four.answers(troubled, what, wire):
        assert not done
        assert text.startswith(sentence), text


def nan_in_a_copy(rank: int) -> None:
    """Statistics are averaged inside the replica first; the rank that they are of is named."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh, normed=True)
    averager = partavg.attach(net, interval=2, parts=1, mesh=mesh["replicate"])
    if rank == 3:
        net[1].running_mean.fill_(torch.nan)
    averager.step()
    averager.step()


def test_the_rank_whose_statistics_are_not_finite_is_named(four: Ranks) -> None:
    for done, text in four.answers(nan_in_a_copy):
        assert not done
        assert text.startswith("NotFinite: rank 3 sent a number that is not finite after step 2")


def leaves(rank: int) -> None:
    """A rank raises an error of its own; the others wait for it in averages of other shards."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh)
    with partavg.attach(net, interval=1, mesh=mesh["replicate"]) as averager:
        for step in range(4):
            if rank == 3 and step == 2:
                raise OverflowError("too much")
            averager.step()


def test_a_rank_that_leaves_tells_those_of_other_shards(four: Ranks) -> None:
    answers = four.answers(leaves)
    assert answers[3][1].startswith("OverflowError: too much")
    for done, text in answers[:3]:
        assert not done
        assert re.match(r"RankLost: rank 3 \(.*\) left after step 2: OverflowError: too much", text)


def replaced(rank: int) -> None:
    """A parameter that is frozen on one rank is trouble for all."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh)
    net[3].weight.requires_grad_(False)
    with partavg.attach(net, interval=2, mesh=mesh["replicate"]) as averager:
        averager.step()
        net[3].weight.requires_grad_(rank == 3)
        averager.step()


def test_a_parameter_that_is_unfrozen_is_named_to_all(four: Ranks) -> None:
    for done, text in four.answers(replaced):
        assert not done
        assert re.match(".*parameter '3.weight' was added or unfrozen since attach", text), text


def frozen(rank: int) -> loops.State:
    """Shards of frozen parameters are no copies of each other; whole numbers are."""
    mesh = loops.mesh_of(2, 2)
    net = loops.fully_sharded(rank, mesh, normed=True)
    net[3].weight.requires_grad_(False)
    with partavg.attach(net, interval=2, mesh=mesh["replicate"]):
        net[1].num_batches_tracked.fill_(rank)
        with torch.no_grad():
            held(net[3].weight).fill_(rank)
    return loops.full(net)


def test_what_nobody_averages_is_that_of_the_first_replica(four: Ranks) -> None:
    for state in four(frozen):
        assert int(state["1.num_batches_tracked"]) == 0
        assert state["3.weight"][:, 0].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
