"""Checkpoints of sharded models: each rank's own, and one of all for other numbers of ranks."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.backends.distributed import sharded_loops as loops
from tests.backends.distributed.loops import distance
from tests.backends.distributed.test_sharded import ADAMW, DILOCO, SGD
from tests.ranks import Ranks, started
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

import partavg
from partavg.backends.distributed import Averager
from partavg.backends.distributed.box import held
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
    loaded = torch.load(io.BytesIO(kept.getvalue()), weights_only=False)
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


def save(rank: int, folder: Path, case: str) -> tuple[loops.State, loops.State, list[loops.State]]:
    """The first replica saves the consensus of two; what they would do after it."""
    loop = Loop(rank, loops.mesh_of(2, 2), *CASES[case])
    loop.train(4)
    loop.averager.consensus()
    if rank < 2:
        dcp.save(
            checkpoint(loop), checkpoint_id=folder, process_group=loop.mesh["shard"].get_group()
        )
    saved = loops.full(loop.net)
    anchors = loop.averager.state_dict()["memory"]["anchor"]
    after = loop.train(5)
    loop.averager.detach()
    return saved, {name: loops.whole(anchor) for name, anchor in anchors.items()}, after


def load(
    rank: int, folder: Path, case: str, shape: tuple[int, int]
) -> tuple[loops.State, loops.State, int, list[loops.State]]:
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
    loaded, steps = loops.full(loop.net), loop.averager.steps
    anchors = loop.averager.state_dict()["memory"]["anchor"]
    after = loop.train(5)
    after.append(loop.close())
    return loaded, {name: loops.whole(anchor) for name, anchor in anchors.items()}, steps, after


@pytest.mark.parametrize("case", ["diloco", "scaffold"])
def test_a_checkpoint_of_two_replicas_goes_on_with_others(
    four: Ranks, two: Ranks, tmp_path: Path, case: str
) -> None:
    """One replica of two ranks, of four, four of one, and two of two again."""
    saved, anchors, after = four(save, tmp_path, case)[0]
    others: list[tuple[Ranks, tuple[int, int]]] = [
        (two, (1, 2)),
        (four, (1, 4)),
        (four, (4, 1)),
        (four, (2, 2)),
    ]
    for ranks, shape in others:
        found = ranks(load, tmp_path, case, shape)
        for loaded, kept, steps, then in found:
            assert steps == 4
            assert distance(loaded, saved) < 1e-12
            assert distance(kept, anchors) < 1e-12
            assert distance(then[-1], found[0][3][-1]) < 1e-12
    assert distance(found[0][3][0], after[0]) < (1e-12 if case == "diloco" else 1.0)
