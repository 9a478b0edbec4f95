"""Any module: mixed dtypes, frozen and tied parameters, memory formats, none or late gradients."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.outside import FedDyn
from tests.ranks import Ranks
from torch import Tensor, nn

import partavg

ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is not set up")


class Odd(nn.Module):
    """All that makes a module hard to average."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.rough = nn.Linear(4, 6).bfloat16()
        self.fine = nn.Linear(6, 6).double()
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.tied = nn.Linear(6, 6)
        self.twin = nn.Linear(6, 6)
        self.twin.weight = self.tied.weight
        self.unused = nn.Linear(2, 2)
        self.scalar = nn.Parameter(torch.tensor(1.0))
        self.empty = nn.Parameter(torch.empty(0))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        x = self.fine(self.rough(x.bfloat16()).double()).float()
        self.count = self.count + 1  # another tensor takes the buffer's place
        return self.scalar * self.twin(self.tied(self.frozen(x)))


def mean_of_odd_modules(rank: int, wire: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A module before and after one cycle without learning: then it must be the mean."""
    torch.manual_seed(rank)  # ranks start apart; attach makes them alike
    net = Odd()
    before_attaching = net.conv.weight.detach().clone()
    averager = partavg.attach(net, interval=3, wire=wire)
    apart = [torch.zeros_like(before_attaching) for _ in range(3)]
    torch.distributed.all_gather(apart, net.conv.weight.detach().contiguous())
    assert all(torch.equal(apart[0], other) for other in apart)
    assert rank == 0 or not torch.equal(before_attaching, net.conv.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(4, 2, 6, 6)).square().sum().backward()
    optimizer.step()
    local = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for _ in range(3):
        averager.step()
    averager.consensus()
    averager.detach()
    return local, {name: tensor.clone() for name, tensor in net.state_dict().items()}


def an_outer_step(rank: int) -> Tensor:
    """A weight right after it was averaged."""
    torch.manual_seed(rank)  # ranks start apart; attach makes them alike
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    averager = partavg.attach(net, optimizer, interval=2, parts=1, solver=partavg.Outer())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    averager.detach()
    return net.weight.detach().clone()


def test_solvers_remember_the_start_that_all_have_in_common(ranks: Ranks) -> None:
    first, *others = ranks(an_outer_step)
    assert all(torch.equal(first, other) for other in others)


def test_any_module_is_averaged(ranks: Ranks) -> None:
    pairs = ranks(mean_of_odd_modules, "full")
    for name, first in pairs[0][1].items():
        locals_ = [local[name] for local, _ in pairs]
        for _, after in pairs:
            assert torch.equal(after[name], first), name
        if name == "count" or "tracked" in name:
            assert torch.equal(first, locals_[0])
        else:
            mean = torch.stack([tensor.double() for tensor in locals_]).mean(0)
            tolerance = 1e-2 if first.dtype == torch.bfloat16 else 1e-6
            torch.testing.assert_close(first.double(), mean, rtol=tolerance, atol=1e-7)
    assert not torch.equal(pairs[0][0]["tied.weight"], pairs[1][0]["tied.weight"])


def average_halves(rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Equal models after 30 averagings, and one that differs before and after one."""
    torch.manual_seed(0)
    net = nn.Linear(3, 7).to(dtype)
    averager = partavg.attach(net, interval=1)
    start = net.weight.detach().clone()
    for _ in range(30):
        averager.step()
    equal = net.weight.detach() - start
    torch.manual_seed(rank)
    with torch.no_grad():
        net.weight.add_(torch.randn(7, 3).to(dtype))
    local = net.weight.detach().clone()
    averager.step()
    averager.detach()
    return equal, local, net.weight.detach().clone()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_averaged_in_float32(ranks: Ranks, dtype: torch.dtype) -> None:
    found = ranks(average_halves, dtype)
    mean = torch.stack([local.double() for _, local, _ in found]).mean(0)
    for equal, _, after in found:
        assert not equal.any()
        assert torch.equal(after, mean.float().to(dtype)), "rounded once"


@ALONE
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"interval": 0}, "interval 0 is below 1"),
        ({"interval": 4, "parts": 3}, "interval 4 cannot be cut into 3 parts"),
        ({"interval": 4, "partition": "diagonal"}, "partition 'diagonal' is not known"),
        ({"interval": 4, "delay": 4}, "delay 4 is not below the interval 4"),
        ({"interval": 4, "wire": "int2"}, "wire 'int2' is not known: use full, bf16, int8, int4"),
        ({"interval": 4, "weight": 0.0}, "weight 0.0 makes no sense"),
        ({"interval": 4, "buffers": "recompute"}, "buffers 'recompute' is the simulator's"),
        ({"interval": 4, "buffers": "frozen"}, "buffers 'frozen' is the simulator's"),
        ({"interval": 4, "buffers": "all"}, "buffers 'all' is not known"),
        ({"interval": 99}, "cannot fill 99 parts"),
        ({"interval": 4, "solver": partavg.SGD()}, "solver SGD takes local steps, and here your"),
    ],
)
def test_bad_options_get_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        partavg.attach(nn.Linear(3, 2), **options)


def solver_problems(net: nn.Linear) -> list[tuple[Any, Any, str]]:
    from partavg.solvers import SOLVERS

    adam = torch.optim.Adam(net.parameters())
    two = torch.optim.SGD([{"params": [net.weight], "lr": 0.1}, {"params": [net.bias], "lr": 0.2}])
    return [
        (None, SOLVERS["fedprox"](), "solver FedProx needs the optimizer"),
        (adam, SOLVERS["fednova"](), "solver FedNova is for workers that take different steps"),
        (
            adam,
            SOLVERS["scaffold"](),
            "solver SCAFFOLD reads gradients from the steps of plain SGD",
        ),
        (two, SOLVERS["vrl_sgd"](), "solver VRLSGD needs one learning rate"),
    ]


@ALONE
@pytest.mark.parametrize("case", range(4))
def test_solvers_that_make_no_sense_here_are_refused(case: int) -> None:
    net = nn.Linear(3, 2)
    optimizer, solver, sentence = solver_problems(net)[case]
    with pytest.raises(ValueError, match=sentence):
        use(net, optimizer, solver)


def use(net: nn.Module, optimizer: Any, solver: Any) -> None:
    partavg.attach(net, optimizer, interval=2, solver=solver)
    optimizer.step()


@dataclass(frozen=True)
class Silent(FedDyn):
    """Steps away from the average, and does not say so."""

    @property
    def abilities(self) -> partavg.Abilities:
        return replace(super().abilities, outer_step=False)


@ALONE
def test_a_step_away_from_the_average_must_be_said() -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    partavg.attach(net, optimizer, interval=2, solver=FedDyn()).detach()
    with pytest.raises(ValueError, match="Silent steps away from the average in `decode_`"):
        partavg.attach(net, optimizer, interval=2, solver=Silent())


@ALONE
@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (nn.ReLU(), "the model has no trainable parameters"),
        (nn.Linear(2, 2, dtype=torch.complex64), "'weight' is torch.complex64: only real numbers"),
    ],
)
def test_modules_that_cannot_be_averaged_are_refused(net: nn.Module, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        partavg.attach(net, interval=2)


@ALONE
def test_gaps_in_memory_are_refused() -> None:
    net = nn.Linear(4, 4)
    net.weight = nn.Parameter(torch.zeros(4, 8)[:, ::2])
    with pytest.raises(ValueError, match="'weight' has gaps in memory"):
        partavg.attach(net, interval=2)


def test_a_process_alone_trains_as_ever_and_is_told_so() -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(net.state_dict())
    one, two = (torch.optim.SGD(module.parameters(), lr=0.1) for module in (net, other))
    with pytest.warns(UserWarning, match="this process trains alone"):
        attached = partavg.attach(net, one, interval=2)
    with attached as averager:
        for _ in range(5):
            for module, optimizer in ((net, one), (other, two)):
                optimizer.zero_grad()
                module(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        with pytest.raises(ValueError, match="averages after its steps already"):
            averager.step()
    assert averager.steps == 5
    assert torch.equal(net.weight, other.weight)
    one.step()
    assert averager.steps == 5, "the optimizer is left as it was"
