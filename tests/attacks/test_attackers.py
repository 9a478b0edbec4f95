"""Attackers in the simulator: slow twins, the same everywhere, and what is refused."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.backends.test_simulate import BATCH, ETA, M, least_squares_gradient, regression
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Participation, Schedule, Simulation, iid
from partavg.aggregates import Median, NormBound, Trimmed
from partavg.attacks import (
    ATTACKS,
    Attack,
    Constant,
    LabelFlip,
    LittleIsEnough,
    Noise,
    Scaled,
    SignFlip,
)
from partavg.attacks.changes import largest_z
from partavg.core.aggregate import About, weighted_sum
from partavg.solvers import SOLVERS

TAU = 4
LIARS = (1, 4)
LIES: dict[str, Attack] = {
    "sign_flip": SignFlip(clients=LIARS, scale=2.0),
    "scaled": Scaled(clients=LIARS, scale=3.0),
    "constant": Constant(clients=LIARS, value=0.7),
    "little_is_enough": LittleIsEnough(clients=LIARS),
    "a little more": LittleIsEnough(clients=LIARS, z=1.5),
}


def sent_by_attackers(name: str, x: np.ndarray, last: np.ndarray) -> np.ndarray:
    """What arrives, of what all have of a part [m, n], as the papers have it."""
    honest = [i for i in range(M) if i not in LIARS]
    mean, deviation = x[honest].mean(0), x[honest].std(0)
    sent = x.copy()
    for i in LIARS:
        sent[i] = {
            "sign_flip": last - 2.0 * (x[i] - last),
            "scaled": last + 3.0 * (x[i] - last),
            "constant": np.full_like(last, 0.7),
            "little_is_enough": mean - 0.0 * deviation,  # z of 2 among 6 is below 0
            "a little more": mean - 1.5 * deviation,
        }[name]
    return sent


AGGREGATES = {
    "mean": (weighted_sum, lambda sent, last: sent.mean(0)),
    "median": (Median(), lambda sent, last: np.median(sent, 0)),
    "trimmed": (Trimmed(1 / 3), lambda sent, last: np.sort(sent, 0)[2:-2].mean(0)),
}


def twin(
    attack: str, aggregate: str, parts: list[np.ndarray], x_0: np.ndarray, g: Any, steps: int
) -> Iterator[np.ndarray]:
    """Algorithm 1 with attackers, line by line."""
    x, last = np.stack([x_0] * M), x_0.copy()
    for k in range(1, steps + 1):
        x = np.stack([x[i] - ETA * g(i, k, x[i]) for i in range(M)])
        due = k % TAU if len(parts) == TAU else (0 if k % TAU == 0 else None)
        if due is not None:
            mine = parts[due]
            sent = sent_by_attackers(attack, x[:, mine], last[mine])
            x[:, mine] = AGGREGATES[aggregate][1](sent, last[mine])
            last[mine] = x[0, mine]
        yield x


@pytest.mark.parametrize("parts", [1, TAU])
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("attack", LIES)
def test_attacks_are_what_the_papers_say(attack: str, aggregate: str, parts: int) -> None:
    model, x, y, split = regression()
    made = Simulation(
        model, F.mse_loss, (x, y), split,
        schedule=Schedule(TAU, parts), lr=ETA, batch=BATCH, engine="looped",
        aggregate=AGGREGATES[aggregate][0], attack=LIES[attack],
    )  # fmt: skip
    owners = made.partition.owners().numpy()
    subsets = [np.flatnonzero(owners == j) for j in range(parts)]
    g = least_squares_gradient(x, y, split)
    start = made.workers.params[0].numpy().copy()
    for _, expected in zip(
        made.train(13), twin(attack, aggregate, subsets, start, g, 13), strict=True
    ):
        np.testing.assert_allclose(made.workers.params.numpy(), expected, rtol=0, atol=1e-10)
    honest = expected[[i for i in range(M) if i not in LIARS]]
    apart = ((honest - honest.mean(0)) ** 2).sum(1).mean()
    assert made.discrepancy().total == pytest.approx(apart)


def test_labels_that_are_flipped_are_other_labels() -> None:
    """The same as a split in which the attackers' own samples have them."""
    x, y = task()
    split = iid(y, 5, seed=0)
    wrong = y.clone()
    for client in LIARS:
        wrong[split[client]] = 2 - y[split[client]]
    one = made(attack=LabelFlip(clients=LIARS))
    other = made(samples=(x, wrong))
    for record, expected in zip(one.train(9), other.train(9), strict=True):
        assert torch.equal(record.losses, expected.losses)
        honest = [i for i in range(5) if i not in LIARS]
        mean = record.losses[honest].double().mean()
        assert float(one.mean_loss(record.losses)) == pytest.approx(float(mean))
    assert torch.equal(one.workers.params, other.workers.params)


def task() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator).double()
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def made(samples: Any = None, workers: int = 5, **options: Any) -> Simulation:
    """A network with BatchNorm, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    given = {"schedule": Schedule.partial(4), "lr": 0.1, "batch": 4, "engine": "looped", **options}
    split = iid(task()[1], workers, seed=0)
    return Simulation(model, F.cross_entropy, samples or task(), split, **given)


def trained(until: int = 11, **options: Any) -> Simulation:
    simulation = made(**options)
    for _ in simulation.train(until):
        pass
    return simulation


EVERY = {name: make(0.4) for name, make in ATTACKS.items() if name != "none"}
HALF = Participation(clients=5, active=3, every=4, redistribution="average")


@pytest.mark.parametrize("engine", ["vmapped", "fused"])
@pytest.mark.parametrize("attack", EVERY)
def test_engines_agree(attack: str, engine: str) -> None:
    options = {"attack": EVERY[attack], "aggregate": Trimmed(0.4)}
    one, other = trained(**options), trained(engine=engine, **options)
    torch.testing.assert_close(one.workers.params, other.workers.params, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attack", EVERY)
@pytest.mark.parametrize("participation", [None, HALF])
def test_what_is_resumed_goes_on_to_the_bit(
    attack: str, participation: Participation | None
) -> None:
    options = {"attack": EVERY[attack], "aggregate": Median(), "participation": participation}
    whole, half = trained(**options), trained(6, **options)
    saved = half.state()
    again = made(**options)
    again.load(saved)
    for _ in again.train(11):
        pass
    assert torch.equal(again.workers.params, whole.workers.params)
    with pytest.raises(ValueError, match=r"was saved with attack\.name = .* has None"):
        made(**{**options, "attack": None}).load(saved)
    with pytest.raises(ValueError, match=r"was saved with attack\.fraction = 0.4"):
        made(**{**options, "attack": type(EVERY[attack])(0.2)}).load(saved)


ROLLING = Participation(5, active=3, every=8, redistribution="permute", interval=4, rolling=True)


@pytest.mark.parametrize("who", [HALF, ROLLING])
def test_attackers_are_clients_and_not_rows(who: Participation) -> None:
    """Of those active only attackers lie, in whatever row they are."""
    seen: list[list[int]] = []

    class Marked(Attack):
        def lie(self, messages: Tensor, liars: Tensor, about: About) -> Tensor:
            seen.append(sorted(who(max(1, about.step))[liars.numpy()].tolist()))
            return messages[liars]

    for _ in made(attack=Marked(clients=LIARS), participation=who).train(24):
        pass
    expected = [set(who(step).tolist()) & set(LIARS) for step in range(1, 25)]
    assert {tuple(some) for some in seen} == {tuple(sorted(some)) for some in expected if some}


def test_honest_attackers_change_nothing() -> None:
    class Honest(Attack):
        def lie(self, messages: Tensor, liars: Tensor, about: About) -> Tensor:
            return messages[liars]

    one, other = trained(), trained(attack=Honest(0.4))
    torch.testing.assert_close(one.workers.params, other.workers.params, rtol=0, atol=1e-12)
    nobody = trained(attack=SignFlip(0.0))
    assert torch.equal(one.workers.params, nobody.workers.params)


def test_a_larger_fraction_has_the_same_attackers_and_others() -> None:
    some = [set(Attack(f / 10).attackers(20, seed=3)) for f in range(10)]
    assert [len(each) for each in some] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert all(one < other for one, other in itertools.pairwise(some))
    assert Attack(0.3).attackers(20, 0) != Attack(0.3).attackers(20, 1)


def test_noise_is_drawn_for_each_part_and_step_and_attacker() -> None:
    last = torch.zeros(4, dtype=torch.float64)
    messages, liars = torch.zeros(3, 6, dtype=torch.float64), torch.tensor([0, 2])
    one = Noise(deviation=2.0).lie(messages, liars, About(0, 1, 7, last, (slice(0, 4),)))
    assert torch.equal(one[:, 4:], messages[liars][:, 4:]), "statistics are sent as they are"
    assert len(one[:, :4].unique()) == 8
    other = Noise(deviation=2.0).lie(messages, liars, About(0, 1, 8, last, (slice(0, 4),)))
    assert not torch.equal(one, other)
    wide = About(0, 1, 7, torch.zeros(5000).double(), (slice(0, 5000),))
    noise = Noise(deviation=2.0).lie(torch.zeros(3, 5000).double(), liars, wide)
    assert 1.9 < float(noise.std()) < 2.1


def test_little_is_as_much_as_hides_among_the_honest() -> None:
    """The example of the paper: 24 of 50 are corrupted."""
    assert largest_z(50, 24) == pytest.approx(1.426, abs=1e-3)  # Φ(z) = 24 / 26
    assert largest_z(50, 1) == 0
    assert largest_z(2, 1) == 0
    assert largest_z(4, 4) == 0


@pytest.mark.parametrize("schedule", [Schedule.periodic(4), Schedule.partial(4)])
@pytest.mark.parametrize("aggregate", [Median(), Trimmed(0.4), NormBound(bound=1.0)])
def test_a_defence_keeps_what_a_mean_loses(schedule: Schedule, aggregate: Any) -> None:
    attack = Constant(clients=LIARS)
    kept = trained(40, schedule=schedule, attack=attack, aggregate=aggregate)
    assert float(kept.largest().max()) < 10
    lost = trained(40, schedule=schedule, attack=attack)
    assert not float(lost.largest().max()) < 1e20


@pytest.mark.parametrize("parts", [1, 4])
def test_the_model_at_the_end_is_made_by_the_same_aggregate(parts: int) -> None:
    options = {"schedule": Schedule(4, parts), "attack": Constant(clients=LIARS, value=50.0)}
    safe = trained(13, aggregate=Median(), **options).consensus()
    assert max(float(p.detach().abs().max()) for p in safe.parameters()) < 10
    mean = trained(13, **options).consensus()
    assert min(float(p.detach().abs().min()) for p in mean.parameters()) > 10
    for buffer in safe.buffers():
        assert float(buffer.float().abs().max()) < 14, "statistics are the median's, too"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"attack": "sign_flip"}, "attack 'sign_flip' cannot be used: give one, like partavg.att"),
        ({"attack": SignFlip}, "attack SignFlip is a class: call it"),
        ({"attack": SignFlip(clients=(5,))}, "attacker 5 is none of 5 clients"),
        ({"attack": SignFlip(), "solver": SOLVERS["fednova"]()}, "FedNova does not send its par"),
        ({"attack": SignFlip(), "wire": "int8"}, "wire 'int8' does not go with .* an attack"),
        ({"aggregate": Median(), "solver": SOLVERS["scaffold"]()}, "SCAFFOLD corrects gradients"),
        ({"aggregate": Median(), "wire": "bf16"}, "does not go with an aggregate other than the"),
    ],
)
def test_what_does_not_go_together_is_said(options: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        made(**options)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"fraction": 1.0}, "fraction 1.0 of all clients cannot attack: use 0 to below 1"),
        ({"fraction": -0.1}, "fraction -0.1"),
        ({"fraction": "a"}, "fraction 'a' is no number"),
        ({"clients": (-1,)}, "an attacker's number -1 is no whole number from 0"),
        ({"clients": 3}, "clients 3 cannot be used"),
        ({"scale": float("nan")}, "scale nan is not finite"),
    ],
)
def test_attackers_that_cannot_be_are_said(given: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SignFlip(**given)


def test_labels_are_flipped_where_there_are_some() -> None:
    x, y = task()
    texts = torch.arange(90 * 6).view(90, 6) % 11
    for samples in ((x, y.double()), (x, torch.stack([y, y], 1)), (texts, texts)):
        with pytest.raises(ValueError, match="the targets are not the classes of samples"):
            made(samples=samples, attack=LabelFlip())
