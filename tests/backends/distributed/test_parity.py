"""Against what users have today: torch's averagers, and torchft's DiLoCo."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, STEPS, distance, model, samples
from tests.limits import seconds
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional as F

import partavg
from partavg import SGD, Schedule
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


class Streaming(NamedTuple):
    """Settings of torchft's DiLoCo, with a layer to a fragment."""

    outer: str = "nesterov"
    sync_every: int = 3
    delay: int = 0
    alpha: float = 0.0
    fragments: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))
    """The layers of each."""


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 3)).double()


def theirs(
    rank: int, how: Streaming, manager: Callable[[int], Any] = lambda rank: Always()
) -> list[dict[str, Tensor]]:
    """The model after every step with torchft's DiLoCo."""
    from torchft.local_sgd import DiLoCo

    net = layers()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    fragments = [nn.ModuleList(net[layer] for layer in some) for some in how.fragments]
    outer = [torch.optim.SGD(some.parameters(), **OUTER[how.outer]) for some in fragments]
    meeting = manager(rank)
    with DiLoCo(
        meeting,
        fragments,
        optimizer,
        outer,
        sync_every=how.sync_every,
        fragment_sync_delay=how.delay,
        fragment_update_alpha=how.alpha,
    ):
        seen = trained(net, optimizer, rank)
    meeting.shutdown(wait=False)
    return seen


def ours(
    rank: int, how: Streaming, manager: Callable[[int], Any] | None = None
) -> list[dict[str, Tensor]]:
    """The same attached: torchft counts when averages arrive, and we when they are sent."""
    net = layers()
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    options, meeting = OUTER[how.outer], manager(rank) if manager else None
    averager = partavg.attach(
        net,
        optimizer,
        interval=how.sync_every,
        partition=[[str(layer) for layer in some] for some in how.fragments],
        offsets=Schedule.streaming(how.sync_every, len(how.fragments), how.delay).offsets,
        delay=how.delay,
        mix=how.alpha,
        solver=Outer(
            SGD(momentum=options.get("momentum", 0.0), nesterov=options.get("nesterov", False)),
            options["lr"],
        ),
        manager=meeting,
    )
    seen = trained(net, optimizer, rank)
    averager.detach()
    if meeting:
        meeting.shutdown(wait=False)
    return seen


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> list[dict[str, Tensor]]:
    inputs, targets = samples()
    seen = []
    for step in range(2 * STEPS):
        mine = (torch.arange(4) + 20 * rank + step) % 60
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[mine]), targets[mine]).backward()
        optimizer.step()
        seen.append({k: v.clone() for k, v in net.state_dict().items()})
    return seen


CASES = {
    "plain": Streaming("sgd"),
    "nesterov": Streaming(),
    "one fragment": Streaming(sync_every=4, fragments=((0, 1, 2),)),
    "strided": Streaming(sync_every=6, fragments=((0, 2), (1,))),
    "mixed": Streaming(sync_every=6, alpha=0.4),
    "late": Streaming(sync_every=6, delay=1),
    "late and mixed": Streaming(sync_every=9, delay=2, alpha=0.5),
    "late, one fragment": Streaming(sync_every=5, delay=4, alpha=0.3, fragments=((0, 1, 2),)),
}


@pytest.mark.parametrize("name", CASES)
def test_fragments_are_streaming_diloco_step_for_step(ranks: Ranks, name: str) -> None:
    pytest.importorskip("torchft")
    assert_same(ranks(theirs, CASES[name]), ranks(ours, CASES[name]))


def assert_same(theirs: list[list[dict[str, Tensor]]], ours: list[list[dict[str, Tensor]]]) -> None:
    for one, other in zip(theirs, ours, strict=True):
        for step, (expected, found) in enumerate(zip(one, other, strict=True), 1):
            assert distance(expected, found) < 1e-10, f"step {step}"


class Real:
    """Makes torchft's own manager for a replica of one process."""

    def __init__(self, lighthouse: str) -> None:
        self.lighthouse = lighthouse

    def __call__(self, rank: int) -> Any:
        from torchft.manager import Manager
        from torchft.process_group import ProcessGroupGloo

        limit = timedelta(seconds=seconds())
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        manager = Manager(
            pg=ProcessGroupGloo(timeout=limit),
            load_state_dict=None,
            state_dict=None,
            min_replica_size=3,
            use_async_quorum=False,
            timeout=limit,
            quorum_timeout=limit,
            rank=0,
            world_size=1,
            replica_id=f"replica{rank}",
            store_addr="localhost",
            store_port=store.port,
            lighthouse_addr=self.lighthouse,
        )
        self.store = store  # as long as the manager
        return manager


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nesterov", "late and mixed"])
def test_also_through_torchfts_manager(ranks: Ranks, name: str) -> None:
    coordination = pytest.importorskip("torchft.coordination")
    server = coordination.LighthouseServer(bind="localhost:0", min_replicas=3)
    try:
        real = Real(server.address())
        found = ranks(ours, CASES[name], real)
        assert_same(ranks(theirs, CASES[name], real), found)
        assert_same(ranks(theirs, CASES[name]), found)
    finally:
        server.shutdown()
