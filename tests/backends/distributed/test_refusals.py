"""Models and optimizers that others have in hand: refused with the remedy, or unwrapped."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, copy, distance, samples
from tests.ranks import Ranks, started
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import partavg

ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is not set up")


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with started(4) as ranks:
        yield ranks


def net_of(rank: int) -> nn.Sequential:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def flat_parameters(rank: int, original: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(
        net_of(rank), device_id=torch.device("cpu"), use_orig_params=original
    )
    partavg.attach(net, torch.optim.SGD(net.parameters(), lr=LR), interval=2)


def ddp(rank: int, inside: bool) -> None:
    net: nn.Module = DistributedDataParallel(net_of(rank))
    if inside:
        net = nn.Sequential(net, nn.Linear(3, 3).double())
    partavg.attach(net, interval=2)


@pytest.mark.parametrize("original", [True, False], ids=["use_orig_params", "flat"])
@pytest.mark.filterwarnings("ignore")
def test_fsdp1_is_refused(four: Ranks, original: bool) -> None:
    for done, text in four.answers(flat_parameters, original):
        assert not done
        assert text.startswith("ValueError: rank 0 cannot start: the model is in FullyShardedData")
        assert "use torch.distributed.fsdp.fully_shard instead" in text.splitlines()[0]


@pytest.mark.parametrize("inside", [True, False])
def test_ddp_over_the_same_ranks_is_refused(four: Ranks, inside: bool) -> None:
    for done, text in four.answers(ddp, inside):
        assert not done
        start = (
            "ValueError: rank 0 cannot start: the model is in DistributedDataParallel over ranks"
        )
        assert text.startswith(f"{start} 0, 1, 2, 3, which then have nothing left to average"), text


def meta(rank: int, which: int) -> None:
    net = net_of(rank)
    partavg.attach(net.to("meta") if rank >= which else net, interval=2)


@pytest.mark.parametrize("which", [0, 2], ids=["all ranks", "some ranks"])
def test_a_model_without_numbers_is_refused(four: Ranks, which: int) -> None:
    for done, text in four.answers(meta, which):
        assert not done
        start = f"ValueError: rank {which} cannot start: tensor '0.weight' is on the meta device"
        assert text.startswith(start), text


class Cutless(nn.Module):
    """Fails while attach looks at it, with an error that is no ValueError."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def named_buffers(self, *_: Any, **__: Any) -> Any:
        raise IndexError("no such layer")


def broken(rank: int) -> None:
    net = nn.ModuleDict({"net": net_of(rank)})
    partavg.attach(Cutless(net["net"]) if rank == 1 else net, interval=2)


def test_an_error_of_another_kind_is_told_to_all(four: Ranks) -> None:
    found = [text.splitlines()[0] for _, text in four.answers(broken)]
    assert found[1] == "IndexError: no such layer"
    told = "ValueError: rank 1 cannot start: IndexError: no such layer"
    assert found[:1] + found[2:] == [told] * 3


def ddp_inside(rank: int, by_hand: bool) -> dict[str, Tensor]:
    """DDP over the ranks of a machine, averages over those of equal place; or a batch of both."""
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    between = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    net, (inputs, targets) = net_of(rank), samples()
    first = rank - rank % 2
    mine = torch.arange(8) + 8 * first if by_hand else torch.arange(4) + 4 * rank + 4 * first
    torch.manual_seed(rank)
    with torch.no_grad():  # DDP makes a machine's ranks alike, attach the machines
        net[2].bias.add_(rank // 2)  # type: ignore[operator]
    model: Any = net if by_hand else DistributedDataParallel(net, process_group=inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    options: Any = {"interval": 2, "local": ["2.bias"], "group": between}
    with partavg.attach(model, optimizer, **options) as averager:
        assert averager.partition.local, "the name of the parameter has no module. before it"
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[mine]), targets[mine]).backward()
            optimizer.step()
    dist.barrier()
    return copy(net)


def test_ddp_inside_a_machine_goes_with_a_group_between(four: Ranks) -> None:
    found, expected = four(ddp_inside, False), four(ddp_inside, True)
    for rank in (0, 2):
        assert distance(found[rank], expected[rank]) < 1e-9
        assert distance(found[rank], found[rank + 1]) == 0
    assert distance(found[0], found[2]) > 0, "what is local"
    del found[0]["2.bias"]
    assert distance(found[0], found[2]) < 1e-12


@ALONE
@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (lambda net: torch.optim.SGD(nn.Linear(2, 2).parameters()), "has none of the model's"),
        (lambda net: [], "no list of different ones"),
        (lambda net: [torch.optim.SGD(net.parameters())] * 2, "no list of different ones"),
        (lambda net: [torch.optim.SGD(net.parameters()), None], "optimizer None is none of torch"),
        (lambda net: net, "optimizer Sequential is none of torch's"),
    ],
)
def test_optimizers_that_are_none_of_the_models(optimizer: Any, sentence: str) -> None:
    net = net_of(0)
    with pytest.raises(ValueError, match=sentence):
        partavg.attach(net, optimizer(net), interval=2)


def wrapped(rank: int) -> dict[str, Tensor]:
    from accelerate import Accelerator

    net, (inputs, targets) = net_of(rank), samples()
    inner = torch.optim.SGD(net.parameters(), lr=LR)
    optimizer = Accelerator(cpu=True).prepare_optimizer(inner)
    assert optimizer is not inner
    with partavg.attach(net, optimizer, interval=2) as averager:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rank::4]), targets[rank::4]).backward()
            optimizer.step()
    assert averager.steps == 3
    return copy(net)


def test_an_optimizer_of_accelerate_is_unwrapped(four: Ranks) -> None:
    first, *others = four(wrapped)
    assert all(distance(first, other) == 0 for other in others)


@ALONE
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_a_compiled_model_are_those_of_the_model() -> None:
    net = net_of(0)
    with partavg.attach(torch.compile(net), interval=2, local=["2.bias"]) as averager:
        assert averager.partition.local
