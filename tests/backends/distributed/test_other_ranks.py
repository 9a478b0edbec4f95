"""Runs that go on with more ranks, and with fewer."""

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, WORKERS, copy, samples
from tests.ranks import Ranks
from torch import nn
from torch.nn import functional as F

import partavg
from partavg.core.adapt import AdaComm
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import diloco
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.vrl_sgd import VRLSGD

CASES: dict[str, dict[str, Any]] = {
    "plain": {"interval": 4},
    "late": {"interval": 4, "delay": 3},
    "int8": {"interval": 2, "wire": "int8"},
    "outer": {"interval": 3, "parts": 1, "solver": diloco()},
    "outer late": {"interval": 3, "delay": 1, "solver": diloco()},
    "fedprox": {"interval": 4, "solver": FedProx(0.1)},
    "scaffold": {"interval": 4, "solver": SCAFFOLD()},
    "vrl-sgd": {"interval": 4, "solver": VRLSGD()},
    "adapts": {"interval": 4, "adapt": AdaComm(4)},
}
WEIGHTS = (1.0, 2.0, 0.5)
MIDDLE, END = 7, 12


def model(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()


def run(
    rank: int, count: int, options: dict[str, Any], files: list[bytes], until: int
) -> dict[str, Any]:
    """Train on some ranks, from the start or from what others had saved."""
    group = dist.new_group(list(range(count)))
    if rank >= count:
        return {}
    net, (inputs, targets) = model(rank), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, group=group, weight=WEIGHTS[rank], **options)
    told: dict[str, Any] = {}
    if files:
        saved = torch.load(io.BytesIO(files[rank % len(files)]), weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        told["loaded"], told["kept"] = copy(net), saved["averager"]["row"]["memory"]
        averager.load_state_dict(saved["averager"])
        told["begun"], told["memory"] = copy(net), dict(averager._row.memory)
        told["memory"] = {name: tensor.clone() for name, tensor in told["memory"].items()}
        assert averager.steps == MIDDLE
    while averager.steps < until:
        mine = (torch.arange(6) + 20 * rank + averager.steps) % 60
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs[mine]), targets[mine])
        averager.see(loss)
        loss.backward()
        optimizer.step()
    file = io.BytesIO()
    parts = {"model": net, "optimizer": optimizer, "averager": averager}
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    averager.consensus()
    averager.detach()
    return {**told, "file": file.getvalue(), "end": copy(net)}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 3)])
@pytest.mark.parametrize("name", CASES)
def test_other_ranks_go_on(ranks: Ranks, name: str, before: int, after: int) -> None:
    files = [told["file"] for told in ranks(run, before, CASES[name], [], MIDDLE)[:before]]
    found = ranks(run, after, CASES[name], files, END)[:after]
    again = ranks(run, after, CASES[name], files, END)[:after]
    weights = torch.tensor(WEIGHTS[:after], dtype=torch.float64)
    weights /= weights.sum()
    for key, first in found[0]["begun"].items():
        assert all(torch.equal(first, told["begun"][key]) for told in found), "one model at once"
        assert all(torch.equal(found[0]["end"][key], told["end"][key]) for told in (*found, *again))
        if "late" not in name and first.is_floating_point():
            mean = torch.tensordot(weights, torch.stack([t["loaded"][key] for t in found]), 1)
            torch.testing.assert_close(first, mean, rtol=0, atol=1e-12)
    if name == "outer":
        for told in found:
            assert told["memory"].keys() == {"anchor", "outer.momentum"}
            assert all(torch.equal(told["kept"][k], kept) for k, kept in told["memory"].items())
    for own, center in {"scaffold": [("control", "common")], "vrl-sgd": [("deviation", "")]}.get(
        name, []
    ):
        mean = torch.tensordot(weights, torch.stack([t["memory"][own] for t in found]), 1)
        expected = found[0]["memory"][center] if center else torch.zeros_like(mean)
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12)
        assert before == 1 or found[0]["memory"][own].norm() > 1e-3


def mixed(rank: int, options: dict[str, Any], files: list[bytes]) -> str:
    """One rank loads a state of two ranks, the others one of three."""
    net = model(rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, **options)
    saved = torch.load(io.BytesIO(files[rank != 1]), weights_only=True)
    try:
        averager.load_state_dict(saved["averager"])
        optimizer.step()
    except ValueError as error:
        return str(error)
    finally:
        averager.detach()
    return ""


def test_states_of_different_runs_are_noticed(ranks: Ranks) -> None:
    options = CASES["plain"]
    two, three = (ranks(run, count, options, [], MIDDLE)[0]["file"] for count in (2, WORKERS))
    for said in ranks(mixed, options, [two, three]):
        assert f"rank 1 loads the state of other ranks after step {MIDDLE}" in said
        assert f"rank 0 averages after step {MIDDLE + 1}" in said
