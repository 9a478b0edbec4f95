"""Personal parameters in a user's own loop: each rank keeps its own, and nobody hears of them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.backends.distributed import test_machines
from tests.backends.distributed.loops import WORKERS, Case, attached, distance, model, simulated
from tests.cli.test_torchrun import torchrun
from tests.limits import seconds
from tests.ranks import Ranks, started
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import partavg
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD

MOMENTUM = SGD(momentum=0.9, weight_decay=1e-2)
CASES = {
    "head": Case({"interval": 4, "local": ["5.*"]}, simulated={"solver": MOMENTUM}),
    "norm": Case({"interval": 4, "parts": 1, "local": ["1.*"]}, simulated={"solver": MOMENTUM}),
    "late": Case({"interval": 4, "delay": 2, "local": ["0.*", "1.*"]},
                 simulated={"solver": MOMENTUM}),
    "fedprox": Case({"interval": 4, "local": ["5.*"], "solver": FedProx(0.5)},
                    simulated={"solver": FedProx(0.5, MOMENTUM)}),
    "scaffold": Case({"interval": 4, "local": ["3.weight"], "solver": SCAFFOLD()},
                     simulated={"solver": SCAFFOLD(MOMENTUM)}),
    "fedavgm": Case({"interval": 4, "local": ["5.*"], "solver": fedavgm()},
                    simulated={"solver": fedavgm(base=MOMENTUM)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_as_the_simulator_does(ranks: Ranks, name: str) -> None:
    expected, found = simulated(CASES[name]), ranks(attached, CASES[name])
    own = own_names(CASES[name].options["local"])
    for rank in range(WORKERS):
        *steps, last = found[rank]
        for one, other in zip(steps, expected[rank][:-1], strict=True):
            assert distance(one, other) < 1e-9
        for key in own:
            assert torch.equal(last[key], steps[-1][key]), "the consensus leaves them alone"
        shared = {key: tensor for key, tensor in last.items() if key not in own}
        assert distance(shared, expected[rank][-1]) < 1e-9
    assert all(distance(found[0][-1], found[rank][-1]) > 1e-3 for rank in range(1, WORKERS))


def own_names(patterns: list[str]) -> set[str]:
    first = tuple(pattern.removesuffix("*") for pattern in patterns)
    floats = {k for k, tensor in model().state_dict().items() if tensor.is_floating_point()}
    return {key for key in floats if key.startswith(first)}


def beginning(rank: int, local: list[str]) -> dict[str, Tensor]:
    """Each rank's model is another when it attaches."""
    net = model()
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor += rank
    averager = partavg.attach(net, interval=2, local=local)
    averager.step()
    averager.detach()
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def test_ranks_begin_with_their_own(ranks: Ranks) -> None:
    start, found = model().state_dict(), ranks(beginning, ["1.*", "5.bias"])
    for rank, state in enumerate(found):
        for name, tensor in state.items():
            mine = name.startswith("1.") or name == "5.bias"
            torch.testing.assert_close(tensor, start[name] + rank * mine)


def sent(rank: int, local: list[str]) -> tuple[int, int]:
    averager = partavg.attach(model(), interval=2, local=local)
    averager.step()
    averager.step()
    averager.detach()
    return averager.bytes, averager.messages


def test_they_are_not_sent(ranks: Ranks) -> None:
    whole, some = ranks(sent, [])[0], ranks(sent, ["0.*", "1.*"])[0]
    state = model().state_dict()
    own = sum(state[name].numel() for name in own_names(["0.*", "1.*"]))
    assert whole[0] - some[0] == 8 * own
    assert whole[1] == some[1] == 2


def misses(rank: int) -> None:
    partavg.attach(model(), interval=2, local=["5.*"] if rank else ["4.*"])


def differs(rank: int) -> None:
    partavg.attach(model(), interval=2, local=["5.*"] if rank else ["3.*"])


def test_what_is_wrong_is_said_to_all(ranks: Ranks) -> None:
    for done, text in ranks.answers(misses):
        assert not done
        assert "local '4.*' matches no parameter that is trained and no buffer" in text
    for done, text in ranks.answers(differs):
        assert not done
        assert "rank 1 has local 5.*, rank 0 has 3.*: start all ranks with the same" in text


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with started(4) as ranks:
        yield ranks


def machines(rank: int, options: dict[str, Any]) -> tuple[list[dict[str, Tensor]], int]:
    """Two ranks a machine, which begin with heads of their own."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))
    return test_machines.loop(headed(rank), torch.arange(4) + 4 * rank, {**options, "group": mesh})


def two_workers(rank: int, options: dict[str, Any]) -> tuple[list[dict[str, Tensor]], int] | None:
    group = torch.distributed.new_group([0, 2])
    if rank % 2:
        return None
    return test_machines.loop(headed(rank), torch.arange(8) + 4 * rank, {**options, "group": group})


def headed(rank: int) -> nn.Module:
    net = test_machines.net()
    with torch.no_grad():
        net[2].weight += rank
    return net


def test_a_machine_has_its_own(four: Ranks) -> None:
    options = {"interval": 3, "local": ["2.*"]}
    found, expected = four(machines, options), four(two_workers, options)
    for rank in range(4):
        for one, other in zip(found[rank][0], expected[rank - rank % 2][0], strict=True):
            assert distance(one, other) < 1e-9
    assert distance(found[0][0][-1], found[2][0][-1]) > 0.5, "the machines differ"


SCRIPT = """
import torch, partavg
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = nn.Sequential()
model.add_module("body", nn.Linear(3, 4))
model.add_module("head", nn.Linear(4, 2))
start = model.head.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with partavg.attach(model, optimizer, interval=2, local=["head.*"]) as averager:
    assert torch.equal(model.head.weight, start)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(5, 3)).square().sum().backward()
        optimizer.step()
    sent = averager.bytes
every = [None, None]
dist.all_gather_object(every, {k: v.tolist() for k, v in model.state_dict().items()})
one, other = every
assert one["body.weight"] == other["body.weight"]
assert one["head.weight"] != other["head.weight"]
if rank == 0:
    print("sent", sent)
"""


@pytest.mark.slow
def test_two_processes_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(SCRIPT)
    ended = subprocess.run(
        [*torchrun(2), str(tmp_path / "loop.py")], capture_output=True, text=True,
        timeout=seconds(), env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "sent 128\n" in ended.stdout, "four times half of the body's 16 numbers"
