"""Statistics that are frozen midway: against a plain loop over ordinary modules."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import FedLAMA, Participation, Schedule, Simulation
from partavg.core.loop import Batch
from partavg.data.batches import Batches
from partavg.engines.fused import Fused
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped
from partavg.solvers.sgd import SGD

M, BATCH, TAU, ETA, FREEZE, K = 4, 6, 3, 0.05, 7, 15
PARTS = [["conv.*", "first.*"], ["deep.*", "second.*"], ["head.*", "last.*"]]


class Net(nn.Module):
    """Both kinds of BatchNorm, a residual, and a buffer that is no statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.deep, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=0.2)
        self.head, self.last = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("table", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(self.conv(x)))
        x = F.relu(self.second(self.deep(x)) + x)
        found: Tensor = self.last(self.head(x.mean((2, 3))))
        return found


def problem() -> tuple[nn.Module, tuple[Tensor, Tensor], list[Tensor]]:
    torch.manual_seed(0)
    x, y = torch.randn(80, 2, 5, 5).double(), torch.randint(0, 3, (80,))
    x += y.view(-1, 1, 1, 1) - y.argsort().argsort().view(-1, 1, 1, 1) / 40  # workers differ
    return Net().double(), (x, y), list(torch.arange(80).view(M, 20))


def simulation(**options: Any) -> Simulation:
    model, samples, split = problem()
    given = {
        "schedule": Schedule.partial(TAU), "lr": ETA, "batch": BATCH, "solver": SGD(0.9),
        "partition": PARTS, "buffers": "frozen", "freeze_at": FREEZE, "engine": "looped",
    }  # fmt: skip
    return Simulation(model, F.cross_entropy, samples, split, **{**given, **options})


def trained(made: Simulation, until: int = K) -> Simulation:
    for _ in made.train(until):
        pass
    return made


def average_(tensors: list[Tensor]) -> None:
    mean = torch.stack([tensor.detach().double() for tensor in tensors]).mean(0)
    for tensor in tensors:
        tensor.data.copy_(mean)


def twin(due: Callable[[int], tuple[int, ...]]) -> Iterator[list[nn.Module]]:
    """Modules and torch's optimizers, one worker after another."""
    model, (x, y), split = problem()
    nets: list[Any] = [copy.deepcopy(model).train() for _ in range(M)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=ETA, momentum=0.9) for net in nets]
    batches = Batches(split, BATCH, seed=0)
    norms = ("first", "second", "last")
    part_of = {"conv": 0, "first": 0, "deep": 1, "second": 1, "head": 2, "last": 2, "table": 2}
    for k in range(1, K + 1):
        frozen = k > FREEZE
        if k == FREEZE + 1:
            for name in norms:
                for both in zip(*(getattr(net, name).buffers() for net in nets), strict=True):
                    average_(list(both))
                for net in nets:
                    getattr(net, name).eval()
        for net, optimizer, own in zip(nets, optimizers, batches(k)[0], strict=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x[own]), y[own]).backward()
            optimizer.step()
        for part in due(k):
            for name in dict(nets[0].state_dict()):
                owner = name.partition(".")[0]
                still = frozen and owner in norms and ("running" in name or "num" in name)
                if part_of[owner] == part and not still:
                    average_([net.state_dict()[name] for net in nets])
        yield nets


@pytest.mark.parametrize("engine", ["looped", "vmapped", "fused"])
def test_all_engines_are_a_plain_loop(engine: str) -> None:
    made = simulation(engine=engine)
    for _, nets in zip(made.train(K), twin(made.schedule), strict=True):
        for row, net in enumerate(nets):
            for name, ours in made.worker(row).state_dict().items():
                theirs = net.state_dict()[name]
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11, msg=name)
    mean = {
        name: torch.stack([net.state_dict()[name].double() for net in nets]).mean(0)
        for name in nets[0].state_dict()
    }
    for name, ours in made.consensus().state_dict().items():
        torch.testing.assert_close(ours.double(), mean[name], rtol=0, atol=1e-11, msg=name)
    statistics = made._model.buffers.views(made.workers.buffers)
    assert all((statistics[f"{n}.running_mean"].std(0) == 0).all() for n in ("first", "last"))


def test_statistics_are_sent_once_more_and_then_no_longer() -> None:
    made = simulation()
    d, b, table = made.workers.params.shape[1], made.workers.buffers.shape[1], 5
    first = made._current.plan.buffer_parts
    sent = [record.bytes // 8 for record in made.train(K)]
    assert sent[5] == 2 * (d + b), "two whole cycles"
    after = made._current.plan
    assert sum(stop - start for part in after.buffer_parts for start, stop in part) == table
    # Part 7 % 3 was averaged after step 7: the statistics of the others are sent.
    due = FREEZE % TAU
    known = sum(b - a for a, b in first[due]) - sum(b - a for a, b in after.buffer_parts[due])
    assert known in (8, 9, 6)
    assert sent[FREEZE] - sent[FREEZE - 1] - sizes(made)[8 % TAU] == b - table - known
    assert sent[K - 1] - sent[K - 4] == d + table


def sizes(made: Simulation) -> list[int]:
    """Columns of each part, with the buffers that are still averaged."""
    plan = made._current.plan
    own = [sum(stop - start for start, stop in part) for part in plan.buffer_parts]
    return [p + n for p, n in zip(plan.partition.sizes, own, strict=True)]


def test_periodic_averaging_right_before_costs_nothing_more() -> None:
    made = simulation(schedule=Schedule.periodic(7), partition="whole")
    sent = [(record.bytes, record.messages) for record in made.train(8)]
    assert sent[7] == sent[6]


ALONGSIDE: dict[str, dict[str, Any]] = {
    "plain": {},
    "at 8, where all change": {"participation": Participation(M, 2, FREEZE)},
    "average": {"participation": Participation(M, 2, 3, "average")},
    "put away": {"participation": Participation(M, 2, 3, "none")},
    "adapt": {"adapt": FedLAMA(2), "partition": "layer"},
    "wire": {"wire": "int8"},
    "head": {"local": ["head.*"], "partition": PARTS[:2]},
    "mix": {"mix": 0.3},
}


@pytest.mark.parametrize("name", ALONGSIDE)
def test_a_run_that_is_resumed_is_the_same(name: str) -> None:
    options = ALONGSIDE[name]
    if "local" in options:
        options = {**options, "schedule": Schedule(4, 2)}
    whole, first = trained(simulation(**options)), simulation(**options)
    for at in (FREEZE - 1, FREEZE, FREEZE + 1, FREEZE + 3):
        saved, second = copy.deepcopy(trained(first, at).state()), simulation(**options)
        second.load(saved)
        trained(second)
        one, other = whole.workers, second.workers
        assert torch.equal(one.params, other.params), at
        assert torch.equal(one.buffers, other.buffers), at
        assert (one.bytes, one.messages) == (other.bytes, other.messages), at
        first.load(saved)  # also from a later step back to an earlier one
        trained(first)
        assert torch.equal(first.workers.params, whole.workers.params), at
        first.load(saved)
    spans = whole._model.statistics
    assert all((whole.workers.buffers[:, a:b].std(0) == 0).all() for a, b in spans)
    u = torch.cat([b.flatten() for b in whole.consensus().buffers()])
    own = torch.cat([b.flatten() for b in whole.worker(0).buffers()])
    assert torch.equal(u[-9:], own[-9:]), "u has the frozen statistics"


def test_redistribution_does_not_send_them_again() -> None:
    made = simulation(participation=Participation(M, 2, 5), freeze_at=6)
    sent = [0, *(record.bytes // 8 for record in made.train(11))]
    rest = sum(n for part, n in enumerate(sizes(made)) if part != 10 % TAU)
    assert sent[11] - sent[10] == rest + sizes(made)[11 % TAU]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"freeze_at": None}, "buffers 'frozen' must know after which step: give freeze_at"),
        ({"freeze_at": 0}, "freeze_at 0 is no whole number from 1"),
        ({"buffers": "part"}, "freeze_at 7 is for statistics that are frozen, and buffers are"),
        ({"local": ["first.*"]}, "keeps some apart: use part, every or local"),
        ({"delay": 1}, "delay 1 lets statistics arrive after they were frozen"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        simulation(**options)


def test_a_model_without_statistics_is_refused() -> None:
    _, samples, split = problem()
    for norm in (nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False)):
        model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Flatten(), nn.Linear(36, 3)).double()
        with pytest.raises(ValueError, match="the model trains none: use part"):
            Simulation(
                model, F.cross_entropy, samples, split,
                schedule=Schedule(2, 2), lr=0.1, buffers="frozen", freeze_at=3,
            )  # fmt: skip


def test_dropout_goes_on() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
    )
    model = RowModel(module.double(), F.cross_entropy, torch.device("cpu"), fixed_statistics=True)
    params, buffers = (row.repeat(2, 1) for row in model.start())
    x, y = torch.randn(6, 5).double().expand(2, 6, 5), torch.randint(0, 2, (6,)).expand(2, 6)
    batch = Batch(x, y, torch.tensor([3, 4]))
    found = []
    for engine in (Looped(model), Vmapped(model, 2), Fused(model, 2)):
        given = buffers.clone()
        each = list(engine(params.clone(), given, batch))
        grads = torch.cat([torch.cat([piece for _, piece in g.pieces], 1) for g in each])
        found.append((torch.cat([g.losses for g in each]), grads))
        assert torch.equal(given, buffers), "they stay as they are"
    losses, grads = found[0]
    assert losses[0] != losses[1], "two keys, two masks"
    for others in found[1:]:
        torch.testing.assert_close(others, (losses, grads), rtol=0, atol=1e-12)


def test_the_start_is_that_of_statistics_by_part() -> None:
    one, other = simulation(), simulation(buffers="part", freeze_at=None)
    for made in (one, other):
        trained(made, FREEZE)
    assert torch.equal(one.workers.params, other.workers.params)
    assert torch.equal(one.workers.buffers, other.workers.buffers)
