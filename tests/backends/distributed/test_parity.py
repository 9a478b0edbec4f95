"""Against what users have today: torch's averagers, and torchft's DiLoCo."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, STEPS, distance, model, samples
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional as F

import partavg
from partavg import SGD, Partition, Span
from partavg.backends.distributed import TorchAverager
from partavg.solvers.outer import Outer


def states(rank: int, how: str) -> list[dict[str, Tensor]]:
    """A float32 model after every step of a loop that averages it every three steps."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # warns, where warnings are errors

    net = model().float()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    inputs, targets = samples()
    ours = how != "torch" and partavg.attach(net, interval=3, parts=1, buffers="local")
    averager = TorchAverager(ours) if ours else PeriodicModelAverager(3, warmup_steps=2)
    wrapped = PostLocalSGDOptimizer(optimizer, averager)
    seen = []
    for step in range(STEPS):
        mine = torch.arange(4) + 20 * rank + step
        wrapped.zero_grad()
        F.cross_entropy(net(inputs[mine % 60].float()), targets[mine % 60]).backward()
        wrapped.step()
        seen.append({k: v.clone() for k, v in net.state_dict().items()})
        if how == "resumed" and step == 4:
            saved = copy.deepcopy(wrapped.state_dict())
            averager.step = 0
            wrapped.load_state_dict(saved)
    return seen


def test_periodic_averaging_is_that_of_torch_step_for_step(ranks: Ranks) -> None:
    theirs, ours, resumed = (ranks(states, how) for how in ("torch", "ours", "resumed"))
    for rank in range(len(ranks)):
        for one, other, third in zip(theirs[rank], ours[rank], resumed[rank], strict=True):
            for name in one:
                torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=1e-7)
                assert torch.equal(other[name], third[name])


class Always:
    """A manager for torchft whose replicas are the ranks here, and never fail."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.commits = 0

    def current_step(self) -> int:
        return self.commits

    def should_commit(self) -> bool:
        self.commits += 1
        return True

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> dist.Work | None:
        tensor /= dist.get_world_size()
        return dist.all_reduce(tensor, async_op=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


OUTER = {"sgd": {"lr": 1.0}, "nesterov": {"lr": 0.7, "momentum": 0.9, "nesterov": True}}


def streamed(rank: int, outer: str, *, ours: bool) -> list[dict[str, Tensor]]:
    """Three layers, another one averaged after every step, by torchft's DiLoCo or by us."""
    from torchft.local_sgd import DiLoCo

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    options = OUTER[outer]
    if ours:
        first, second = 5 * 7 + 7, 5 * 7 + 7 + 7 * 6 + 6
        size = second + 6 * 3 + 3
        parts = ((Span(second, size),), (Span(0, first),), (Span(first, second),))
        solver = Outer(
            SGD(momentum=options.get("momentum", 0.0), nesterov=options.get("nesterov", False)),
            options["lr"],
        )
        averaging: Any = partavg.attach(
            net, optimizer, interval=3, partition=Partition(size, parts), solver=solver
        )
    else:
        optimizers = [torch.optim.SGD(layer.parameters(), **options) for layer in net]
        averaging = DiLoCo(Always(), list(net), optimizer, optimizers, sync_every=3)
        averaging.__enter__()
    inputs, targets = samples()
    seen = []
    for step in range(STEPS):
        mine = (torch.arange(4) + 20 * rank + step) % 60
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[mine]), targets[mine]).backward()
        optimizer.step()
        seen.append({k: v.clone() for k, v in net.state_dict().items()})
    return seen


def theirs(rank: int, outer: str) -> list[dict[str, Tensor]]:
    return streamed(rank, outer, ours=False)


def ours(rank: int, outer: str) -> list[dict[str, Tensor]]:
    return streamed(rank, outer, ours=True)


@pytest.mark.parametrize("outer", OUTER)
def test_parts_by_layer_are_streaming_diloco_step_for_step(ranks: Ranks, outer: str) -> None:
    pytest.importorskip("torchft")
    for one, other in zip(ranks(theirs, outer), ranks(ours, outer), strict=True):
        for step, (expected, found) in enumerate(zip(one, other, strict=True), 1):
            assert distance(expected, found) < 1e-10, f"step {step}"
