"""After `consensus()` and after the with-block all ranks hold the same model, whatever was done."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import BATCH, LR, Case, copy, distance, samples, simulated
from tests.backends.distributed.loops import model as usual
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer

import partavg
from partavg.data.batches import Batches

Change = Callable[[int, int, nn.Module, Any], None]


class Net(nn.Module):
    """Layers to be changed while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 3)
        self.register_buffer("whole", torch.arange(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.norm(self.first(x))).relu())


def train(
    rank: int,
    optimizers: Callable[[nn.Module], list[Optimizer]],
    change: Change | None = None,
    steps: int = 5,
    *,
    known: int | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """A loop into which a change comes after every step; the model that it leaves.

    Of the optimizers attach gets to know some.
    """
    torch.manual_seed(rank)
    net = Net().double()
    inputs, targets = samples()
    several = optimizers(net)
    told = several[:known]
    given = {"interval": 3, **options}
    with partavg.attach(net, told if len(told) > 1 else told[0], **given) as averager:
        if change:
            change(rank, 0, net, averager)
        for step in range(1, steps + 1):
            chosen = torch.randint(60, (4,))
            for optimizer in several:
                optimizer.zero_grad()
            F.cross_entropy(net(inputs[chosen]), targets[chosen]).backward()
            for optimizer in several:
                optimizer.step()
            if change:
                change(rank, step, net, averager)
    assert averager.steps == steps
    return copy(net)


def one_sgd(net: nn.Module) -> list[Optimizer]:
    return [SGD(net.parameters(), lr=LR, momentum=0.9)]


def muon_and_adamw(net: nn.Module) -> list[Optimizer]:
    matrices = [p for p in net.parameters() if p.ndim == 2 and p.requires_grad]
    others = [p for p in net.parameters() if p.ndim < 2 and p.requires_grad]
    return [Muon(matrices, lr=LR), AdamW(others, lr=LR)]


def sgd_and_adam(net: Any) -> list[Optimizer]:
    return [SGD(net.first.parameters(), lr=LR), Adam(net.last.parameters(), lr=LR)]


def only_the_first_layer(net: Any) -> list[Optimizer]:
    return [SGD(net.first.parameters(), lr=LR)]


def noise(rank: int, step: int, net: nn.Module, _: Any) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter)).clamp_(-0.5, 0.5)


def load_at_start(rank: int, step: int, net: nn.Module, averager: Any) -> None:
    if step == 0:
        torch.manual_seed(100 + rank)
        net.load_state_dict(Net().double().state_dict())
        net.whole.fill_(rank)  # type: ignore[operator, union-attr]


def load_and_ask(rank: int, step: int, net: nn.Module, averager: Any) -> None:
    load_at_start(rank, step, net, averager)
    if step == 0:
        averager.consensus()


def load_and_end(rank: int, step: int, net: nn.Module, averager: Any) -> None:
    """The last that happens before the end."""
    load_at_start(rank, step - 5, net, averager)


def assign(rank: int, step: int, net: nn.Module, _: Any) -> None:
    if step == 4:
        torch.manual_seed(100 + rank)
        frozen = {name: p.requires_grad for name, p in net.named_parameters()}
        net.load_state_dict(Net().double().state_dict(), assign=True)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(frozen[name])


def replace(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 2:
        net.last.weight = nn.Parameter(net.last.weight.detach() + rank)


def freeze(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 2:
        net.first.requires_grad_(False)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("known", [None, 1], ids=["all known", "the first known"])
@pytest.mark.parametrize(
    "optimizers", [muon_and_adamw, sgd_and_adam, only_the_first_layer], ids=lambda f: f.__name__
)
def test_any_optimizers(ranks: Ranks, optimizers: Any, known: int | None, interval: int) -> None:
    first, *others = ranks(any_optimizers, optimizers, known, interval)
    assert all(distance(first, other) == 0 for other in others)


def any_optimizers(
    rank: int, optimizers: Any, known: int | None, interval: int
) -> dict[str, Tensor]:
    return train(rank, optimizers, known=known, interval=interval)


CHANGES = [noise, load_at_start, load_and_ask, load_and_end, assign, replace, freeze]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("interval", [1, 3])
def test_whatever_the_loop_does(ranks: Ranks, change: Change, interval: int) -> None:
    first, *others = ranks(changed, change, interval)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def changed(rank: int, change: Change, interval: int) -> dict[str, Tensor]:
    return train(rank, one_sgd, change, interval=interval)


def replaced_is_averaged(rank: int) -> tuple[Tensor, Tensor]:
    """A parameter in another's place before and after the averaging that ends the cycle."""
    torch.manual_seed(rank)
    net = nn.Linear(2, 2)
    averager = partavg.attach(net, interval=2, parts=1)
    averager.step()
    net.weight = nn.Parameter(torch.full((2, 2), float(rank)))
    before = net.weight.detach().clone()
    averager.step()
    averager.detach()
    return before, net.weight.detach()


def test_a_replaced_parameter_is_taken_over_at_the_end_of_the_cycle(ranks: Ranks) -> None:
    found = ranks(replaced_is_averaged)
    mean = torch.stack([before for before, _ in found]).mean(0)
    assert all(torch.equal(after, mean) for _, after in found)


def unfreeze(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 1:
        net.frozen.requires_grad_(True)


def add(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 1:
        net.more = nn.Linear(2, 2)


def remove(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 1:
        net.last.bias = None


def remove_buffer(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 1:
        net.norm.running_mean = None


def reshape(rank: int, step: int, net: Any, _: Any) -> None:
    if step == 1:
        net.first.weight = nn.Parameter(torch.zeros(7, 5, dtype=torch.float64))
        net.first.weight.grad = None


def on_rank_1(rank: int, step: int, net: Any, averager: Any) -> None:
    if rank == 1:
        unfreeze(rank, step, net, averager)


def refused(rank: int, change: Change, steps: int) -> None:
    def then(rank: int, step: int, net: Any, averager: Any) -> None:
        change(rank, step, net, averager)
        if step == 1:  # or torch would meet the change before attach does
            net.forward = lambda x: x[:, :3] + 0 * net.last.weight.sum()

    train(rank, one_sgd, then, steps)


@pytest.mark.parametrize("steps", [5, 1], ids=["at the end of the cycle", "at the consensus"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (unfreeze, "rank 0: parameter 'frozen.weight' was added or unfrozen since attach"),
        (on_rank_1, "rank 1: parameter 'frozen.weight' was added or unfrozen since attach"),
        (add, "rank 0: parameter 'more.weight' was added or unfrozen since attach"),
        (remove, "rank 0: parameter 'last.bias' is gone from the model since attach"),
        (
            remove_buffer,
            "buffer 'running_mean' is gone from a BatchNorm1d of the model since attach",
        ),
        (
            reshape,
            "rank 0: parameter 'first.weight' is 7×5 torch.float64 on cpu and was 6×5 "
            "torch.float64 on cpu at attach",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(
    ranks: Ranks, change: Change, sentence: str, steps: int
) -> None:
    for done, text in ranks.answers(refused, change, steps):
        assert not done
        start = f"ValueError: {sentence}"
        assert text.startswith(start), text
        assert "detach, and attach again" in text.splitlines()[0]


def split_optimizers(rank: int, case: Case) -> list[dict[str, Tensor]]:
    """As `attached`, with an optimizer for every layer, stepped in any order but the last."""
    net, (inputs, targets) = usual(rank), samples()
    name, options = case.optimizer
    make = getattr(torch.optim, name)
    layers = [list(layer.parameters()) for layer in net.children()]
    several = [make(layer, lr=LR, **options) for layer in layers if layer]
    batches, seen = Batches(list(torch.split(torch.arange(60), [14, 20, 26])), BATCH, 0), []
    with partavg.attach(net, several, **case.options):
        for step in range(1, 8):
            chosen = batches(step, None)[0][rank]
            for optimizer in several:
                optimizer.zero_grad()
            F.cross_entropy(net(inputs[chosen]), targets[chosen]).backward()
            for optimizer in [*reversed(several[:-1]), several[-1]]:
                optimizer.step()
            seen.append(copy(net))
    return [*seen, copy(net)]


@pytest.mark.parametrize(
    "solver",
    [partavg.FedProx(0.5), partavg.SCAFFOLD(), partavg.VRLSGD(), partavg.Outer()],
    ids=lambda solver: type(solver).__name__,
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_solvers_act_on_each_of_several_optimizers(
    ranks: Ranks, solver: Any, momentum: float
) -> None:
    case = Case(
        {"interval": 3, "solver": solver},
        ("SGD", {"momentum": momentum}),
        {"solver": dataclasses.replace(solver, base=partavg.SGD(momentum=momentum))},
    )
    expected = simulated(case, 7)
    for rank, found in enumerate(ranks(split_optimizers, case)):
        for step, (one, other) in enumerate(zip(found, expected[rank], strict=True), 1):
            assert distance(one, other) < 1e-9, f"rank {rank}, step {step}"
