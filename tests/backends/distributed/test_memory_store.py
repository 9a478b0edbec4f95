"""A solver's memory in fewer bytes, or on the host: computed with as ever."""

import io
from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import LR
from tests.ranks import Ranks
from torch import Tensor, nn

import partavg
from partavg.solvers.adam import Adam
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer, diloco
from partavg.solvers.scaffold import SCAFFOLD

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is not set up")


def trained(
    rank: int, options: dict[str, Any], kind: torch.dtype, device: str = "cpu", stop: int = 0
) -> tuple[list[Tensor], dict[str, tuple[torch.dtype, bool]]]:
    """A model after some steps, saved and loaded on the way if asked, and its solver's memory."""
    torch.manual_seed(rank)
    net, saved = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3)), io.BytesIO()
    net.to(device, kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, **options)
    for step in range(7):
        if stop and step == stop:
            parts = {"net": net, "optimizer": optimizer, "averager": averager}
            torch.save({name: part.state_dict() for name, part in parts.items()}, saved)
        _step(net, optimizer, rank, step)
    if stop:
        loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(loaded[name])
        for step in range(stop, 7):
            _step(net, optimizer, rank, step)
    memory = averager._row.memory
    averager.consensus()
    averager.detach()
    kept = {name: (tensor.dtype, tensor.is_pinned()) for name, tensor in memory.items()}
    return [p.detach().cpu() for p in net.parameters()], kept


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    parameter = next(net.parameters())
    generator = torch.Generator().manual_seed(100 * rank + step)
    x = torch.randn(6, 9, generator=generator).to(parameter)
    optimizer.zero_grad()
    (net(x) - rank).square().mean().backward()
    optimizer.step()


SOLVERS = {"diloco": diloco(), "adam": Outer(Adam(), 0.01), "late": diloco()}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("memory", ["params", "host", "params+host"])
def test_memory_of_the_same_type_is_the_same_to_the_bit(
    ranks: Ranks, name: str, memory: str
) -> None:
    options = {"interval": 3, "solver": SOLVERS[name], "delay": 2 * (name == "late")}
    full = ranks(trained, options, torch.float64)
    other = ranks(trained, {**options, "memory": memory}, torch.float64)
    for (one, _), (two, _) in zip(full, other, strict=True):
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("solver", [diloco(), FedProx(0.1), SCAFFOLD()])
def test_memory_in_the_parameters_type_rounds_what_is_kept(ranks: Ranks, solver: Any) -> None:
    options = {"interval": 3, "solver": solver}
    full = ranks(trained, options, torch.bfloat16)
    narrow = ranks(trained, {**options, "memory": "params"}, torch.bfloat16)
    for (one, wide), (two, kept) in zip(full, narrow, strict=True):
        assert {kind for kind, _ in wide.values()} == {torch.float32}
        assert {kind for kind, _ in kept.values()} == {torch.bfloat16}
        for x, y in zip(one, two, strict=True):
            torch.testing.assert_close(x, y, rtol=0.02, atol=0.02)
    assert all(map(torch.equal, narrow[0][0], narrow[1][0])), "all ranks hold the same"


def test_it_is_saved_and_loaded(ranks: Ranks) -> None:
    options = {"interval": 3, "solver": diloco(), "memory": "params"}
    whole = ranks(trained, options, torch.bfloat16)
    again = ranks(trained, options, torch.bfloat16, "cpu", 4)
    for (one, _), (two, _) in zip(whole, again, strict=True):
        assert all(map(torch.equal, one, two))


@ALONE
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"memory": "disk"}, "memory 'disk' is not known: use full, params, host, params+host"),
        (
            {"memory": "host", "solver": FedProx()},
            "which needs its memory at every step: use 'full'",
        ),
        ({"memory": "params+host", "solver": SCAFFOLD()}, "at every step: use 'params'"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], sentence: str) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    with pytest.raises(ValueError, match=sentence.replace("+", r"\+")):
        partavg.attach(net, optimizer, interval=2, **options)


@CUDA
@ALONE
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SOLVERS)
def test_memory_on_the_host_of_a_gpu(name: str, kind: torch.dtype) -> None:
    options = {"interval": 3, "solver": SOLVERS[name], "delay": 2 * (name == "late")}
    for near, far in (("full", "host"), ("params", "params+host")):
        one, here = trained(0, {**options, "memory": near}, kind, "cuda")
        two, there = trained(0, {**options, "memory": far}, kind, "cuda")
        again, _ = trained(0, {**options, "memory": far}, kind, "cuda", 4)
        assert not any(pinned for _, pinned in here.values())
        assert all(pinned for _, pinned in there.values())
        assert all(map(torch.equal, one, two))
        assert all(map(torch.equal, one, again))
