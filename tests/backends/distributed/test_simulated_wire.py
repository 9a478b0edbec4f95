"""Rounded messages in the simulator: the numbers and bytes of ranks that send them."""

import copy
from typing import Any, get_args

import pytest
import torch
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.backends.simulate import Simulation
from partavg.core.adapt import PostLocal
from partavg.core.participation import Participation
from partavg.core.rounded import rounded_sum
from partavg.core.schedule import Schedule
from partavg.core.wire_formats import WIRE_FORMATS, Wire
from partavg.data.batches import Batches
from partavg.solvers.fednova import FedNova
from partavg.solvers.outer import Outer
from partavg.solvers.sgd import SGD

ROUNDED = [name for name, wire in WIRE_FORMATS.items() if wire.codec]
WORKERS, STEPS, BATCH, LR = 4, 17, 5, 0.05


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 12, generator=generator).double()
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def net() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(40)
    norm.num_batches_tracked = None  # attach sends no such counter
    return nn.Sequential(nn.Linear(12, 40), norm, nn.ReLU(), nn.Linear(40, 3)).double()


def split(workers: int) -> list[Tensor]:
    return list(torch.arange(120).view(workers, -1))


def simulation(wire: str = "int8", workers: int = WORKERS, **options: Any) -> Simulation:
    how: dict[str, Any] = {"schedule": Schedule.partial(4), "lr": LR, "batch": BATCH}
    how |= {"engine": "looped", "wire": wire, **options}
    return Simulation(net(), F.cross_entropy, samples(), split(workers), **how)


def trained(made: Simulation, until: int = STEPS) -> Simulation:
    for _ in made.train(until):
        pass
    return made


def on_a_rank(rank: int, workers: int, options: dict[str, Any]) -> tuple[Tensor, int]:
    """A plain loop with the batches that the simulator draws."""
    model, (x, y) = net(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    draw = Batches(split(workers), BATCH, 0)
    averager = partavg.attach(model, optimizer, **options)
    for step in range(1, STEPS + 1):
        indices, _ = draw(step, torch.arange(workers).numpy())
        optimizer.zero_grad()
        F.cross_entropy(model(x[indices[rank]]), y[indices[rank]]).backward()
        optimizer.step()
    params = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    sent = averager.bytes
    averager.detach()
    return params, sent


NESTEROV = SGD(0.6, nesterov=True)


@pytest.mark.parametrize("wire", ROUNDED)
@pytest.mark.parametrize(
    "options",
    [{}, {"parts": 1}, {"solver": Outer(NESTEROV, 0.7)}, {"parts": 2, "delay": 1, "mix": 0.25}],
    ids=["partial", "periodic", "outer", "late"],
)
def test_it_is_attach_on_as_many_ranks(ranks: Ranks, wire: str, options: dict[str, Any]) -> None:
    count = len(ranks)
    given = {"interval": 4, "wire": wire, **options}
    found = ranks(on_a_rank, count, given)
    rest = {name: value for name, value in options.items() if name != "parts"}
    schedule = Schedule(4, options.get("parts", 4))
    ours = trained(simulation(wire, count, schedule=schedule, engine="looped", **rest))
    for rank, (params, sent) in enumerate(found):
        torch.testing.assert_close(ours.workers.params[rank], params, rtol=0, atol=1e-9)
        assert sent == ours.workers.bytes


@pytest.mark.parametrize("wire", ROUNDED)
def test_a_run_that_resumes_is_the_run_without_a_stop(wire: str) -> None:
    made = trained(simulation(wire), 9)
    saved = copy.deepcopy(made.state())
    assert saved["owed"][0]["late"].abs().sum() > 0
    again = simulation(wire)
    again.load(saved)
    assert torch.equal(trained(made).workers.params, trained(again).workers.params)
    assert made.workers.bytes == again.workers.bytes
    with pytest.raises(ValueError, match="wire"):
        simulation("full").load(saved)


@pytest.mark.parametrize("wire", ROUNDED)
def test_nothing_is_lost(wire: str) -> None:
    """What all have, and what is owed, are Σ p_i x_i and what was owed before."""
    torch.manual_seed(0)
    weights, before = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), torch.zeros(100)
    owed: dict[str, Tensor] = {}
    for number in range(6):
        messages = torch.randn(4, 103).double()
        total = rounded_sum(messages, weights, 100, owed=owed, wire=wire)
        exact = weights @ messages
        debt = owed["late"].sum(0) + owed["late_sum"][0] if number else before.double()
        torch.testing.assert_close(total[:100] + debt, exact[:100] + before, rtol=0, atol=1e-13)
        torch.testing.assert_close(total[100:], exact[100:])
        assert (debt.abs().sum() > 0) == (number > 0), "the first message is in full"
        before = debt


@pytest.mark.parametrize("wire", ROUNDED)
def test_all_workers_decode_the_same(wire: str) -> None:
    made = simulation(wire, schedule=Schedule.periodic(4), batch=8)
    for step in (4, 8, 12):
        trained(made, step)
        assert (made.workers.params == made.workers.params[0]).all()
        assert torch.equal(made.workers.owed[0]["known"], made.workers.params[0])


def test_statistics_and_what_workers_tell_are_exact() -> None:
    rounded = trained(simulation("top-k", schedule=Schedule.periodic(4)), 4)
    full = trained(simulation("full", schedule=Schedule.periodic(4)), 4)
    assert torch.equal(rounded.workers.buffers, full.workers.buffers)
    pace = partavg.core.pace.Fixed(4, (4, 2), 4)
    nova = trained(simulation("int8", solver=FedNova(), pace=pace))
    assert nova.workers.params.isfinite().all()
    assert nova.workers.owed[0]["known"].shape == (nova.partition.sizes[0],)


@pytest.mark.parametrize("redistribution", ["permute", "average"])
def test_clients_that_come_and_go(redistribution: str) -> None:
    who = Participation(WORKERS, 2, 4, redistribution)
    near = trained(simulation("int8", participation=who)).workers.params
    far = trained(simulation("full", participation=who)).workers.params
    assert 0 < (near - far).abs().max() < 0.02


def test_parts_that_change_begin_anew() -> None:
    made = trained(simulation("int4", adapt=PostLocal(6)), 6)
    assert list(made.workers.owed) == [0]
    trained(made, 8)
    assert sorted(made.workers.owed) == [1, 2]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="wire 'int3'"):
        simulation("int3")
    with pytest.raises(ValueError, match="fresh columns are others every time"):
        simulation(partition="fresh")
    with pytest.raises(ValueError, match="does not go with an aggregate other than the mean"):
        simulation(aggregate=lambda messages, weights, about: weights @ messages)
    with pytest.raises(ValueError, match="models are put away: use permute or average"):
        simulation(participation=Participation(WORKERS, 2, 4, "none"))
    made = trained(simulation(), 8)
    made.workers.owed[1]["known"] = torch.zeros(3)
    with pytest.raises(ValueError, match="and 3 when it was sent last"):
        trained(made)


def test_the_formats_have_their_names() -> None:
    assert get_args(Wire) == tuple(WIRE_FORMATS)
