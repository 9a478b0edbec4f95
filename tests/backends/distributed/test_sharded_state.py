"""Checkpoints of sharded models: each rank's own, and one of all for other numbers of ranks."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.backends.distributed import sharded_loops as loops
from tests.backends.distributed.loops import distance
from tests.backends.distributed.test_sharded import ADAMW, DILOCO, SGD
from tests.ranks import Ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

import partavg
from partavg.backends.distributed import Averager
from partavg.solvers.scaffold import SCAFFOLD

CASES: dict[str, tuple[dict[str, Any], tuple[str, dict[str, Any]]]] = {
    "diloco": ({"interval": 3, "solver": DILOCO}, ADAMW),
    "delay": ({"interval": 4, "delay": 3}, SGD),
    "int8": ({"interval": 3, "wire": "int8"}, SGD),
    "scaffold": ({"interval": 3, "solver": SCAFFOLD()}, SGD),
}


class Loop:
    """A model, its optimizer and its averager on a mesh."""

    def __init__(
        self,
        rank: int,
        mesh: DeviceMesh,
        options: dict[str, Any],
        optimizer: tuple[str, dict[str, Any]],
    ) -> None:
        self.mesh, self.rank = mesh, rank
        self.net: nn.Module = loops.fully_sharded(rank, mesh)
        self.optimizer = loops.optimizer_of(self.net, optimizer)
        self.averager: Averager = partavg.attach(
            self.net, self.optimizer, mesh=mesh["replicate"], **options
        )

    def train(self, until: int) -> list[loops.State]:
        numbers = torch.arange(4) + 4 * self.rank
        return loops.train(self.net, self.optimizer, self.averager, numbers, until)

    def close(self) -> loops.State:
        self.averager.consensus()
        self.averager.detach()
        return loops.full(self.net)


def twice(rank: int, case: str) -> bool:
    """Nine steps at once, and with a stop after four; each rank saves its own."""
    whole = Loop(rank, loops.mesh_of(2, 2), *CASES[case])
    whole.train(9)
    first = Loop(rank, loops.mesh_of(2, 2), *CASES[case])
    first.train(4)
    kept = io.BytesIO()
    things = {"net": first.net, "optimizer": first.optimizer, "averager": first.averager}
    torch.save({name: thing.state_dict() for name, thing in things.items()}, kept)
    first.averager.detach()
    second = Loop(rank, loops.mesh_of(2, 2), *CASES[case])
    loaded = torch.load(io.BytesIO(kept.getvalue()), weights_only=True)
    for name in things:
        getattr(second, name).load_state_dict(loaded[name])
    second.train(9)
    one, other = whole.close(), second.close()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("case", CASES)
def test_each_rank_goes_on_bit_for_bit_from_its_own(four: Ranks, case: str) -> None:
    assert all(four(twice, case))


def checkpoint(loop: Loop) -> dict[str, Any]:
    model, optimizer = get_state_dict(loop.net, loop.optimizer)
    return {"model": model, "optimizer": optimizer, "averager": loop.averager.state_dict()}


def remembered(loop: Loop) -> loops.State:
    """What the optimizer and the solver remember, whole."""
    anchors = loop.averager.state_dict()["memory"]["anchor"].items()
    moments = {
        f"{name}.{key}": loops.whole(value)
        for name, parameter in loop.net.named_parameters()
        for key, value in loop.optimizer.state[parameter].items()
    }
    return {**moments, **{name: loops.whole(anchor) for name, anchor in anchors}}


def save(rank: int, folder: Path, case: str) -> tuple[loops.State, loops.State]:
    """The first replica saves the consensus of two."""
    loop = Loop(rank, loops.mesh_of(2, 2), *CASES[case])
    loop.train(4)
    loop.averager.consensus()
    if rank < 2:
        group = loop.mesh["shard"].get_group()
        dcp.save(checkpoint(loop), checkpoint_id=folder, process_group=group)
    loop.averager.detach()
    return loops.full(loop.net), remembered(loop)


def load(
    rank: int, folder: Path, case: str, shape: tuple[int, int]
) -> tuple[loops.State, loops.State, int, loops.State]:
    """What was loaded, and the consensus two steps later."""
    loop = Loop(rank, loops.mesh_of(*shape), *CASES[case])
    state = checkpoint(loop)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        loop.net,
        loop.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    loop.averager.load_state_dict(state["averager"])
    loaded, kept, steps = loops.full(loop.net), remembered(loop), loop.averager.steps
    loop.train(6)
    return loaded, kept, steps, loop.close()


@pytest.mark.parametrize("case", ["diloco", "scaffold"])
def test_a_checkpoint_of_two_replicas_goes_on_with_others(
    four: Ranks, two: Ranks, tmp_path: Path, case: str
) -> None:
    """One replica of two ranks, or of four, four of one, and two of two again."""
    saved, memory = four(save, tmp_path, case)[0]
    for ranks, shape in ((two, (1, 2)), (four, (1, 4)), (four, (4, 1)), (four, (2, 2))):
        found = ranks(load, tmp_path, case, shape)
        for loaded, kept, steps, then in found:
            assert steps == 4
            assert distance(loaded, saved) < 1e-12
            assert kept.keys() == memory.keys()
            assert distance(kept, memory) < 1e-12
            assert distance(then, found[0][3]) < 1e-12
            assert distance(then, saved) > 1e-3


def load_on_its_way(rank: int) -> None:
    """Averages that were on their way are some rank's own, and of no use to others."""
    loop = Loop(rank, loops.mesh_of(2, 2), *CASES["delay"])
    loop.train(4)
    states = [loop.averager.state_dict()] * 4
    dist.all_gather_object(states, states[0])
    loop.averager.load_state_dict(states[0])


def test_averages_on_their_way_are_not_for_other_ranks(four: Ranks) -> None:
    for done, text in four.answers(load_on_its_way):
        assert not done
        assert text.startswith("ValueError: averages were on their way when this was saved"), text
