"""Changes are clipped, divided by a fixed number, and noise is what it is said to be."""

from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from partavg.core.aggregate import About
from partavg.core.poisson import CYCLES, Poisson
from partavg.core.private import PrivateMean, Quantile, clip_, part_shares
from partavg.privacy.settings import Privacy

SIZES = (6, 10, 16)


def mean(**options: Any) -> PrivateMean:
    given = {"clip": 2.0, "noise": 0.0, "shares": part_shares(SIZES), "expected": 5.0, **options}
    return PrivateMean(**given)


def released(
    made: PrivateMean,
    changes: Tensor,
    part: int = 0,
    seed: int = 0,
    notes: Any = None,
    here: int = 5,
) -> Tensor:
    """What is added to the last release of a part; `here` workers are there."""
    last = torch.arange(changes.shape[1], dtype=torch.float64)
    about = About(part, 1, seed, last, (slice(0, len(last)),))
    weights = torch.full((len(changes),), 1 / made.expected, dtype=torch.float64)
    weights[here:] = 0
    release = made.remembering({} if notes is None else notes)
    return release(changes + last, weights, about) - last


def drawn(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


@given(st.integers(0, 100), st.floats(0.01, 30))
def test_rows_are_no_longer_than_the_bound_and_short_ones_as_they_were(
    seed: int, bound: float
) -> None:
    rows = drawn(4, 9, seed) * torch.tensor([[0.0], [0.01], [1.0], [50.0]]).double()
    before = rows.clone()
    norms = clip_(rows, bound)
    torch.testing.assert_close(norms, before.norm(dim=1))
    assert (rows.norm(dim=1) <= bound * (1 + 1e-12)).all()
    short = norms <= bound
    assert torch.equal(rows[short], before[short])
    torch.testing.assert_close(rows * norms[:, None], before * rows.norm(dim=1)[:, None])


def test_what_is_not_finite_counts_for_nothing() -> None:
    changes = drawn(3, 6)
    alone = released(mean(), changes.clone()[:1])
    changes[1, 2], changes[2, 0] = torch.nan, torch.inf
    assert torch.equal(released(mean(), changes), alone)


@given(st.integers(0, 1000))
def test_one_client_moves_all_sums_of_a_cycle_by_no_more_than_the_clip(seed: int) -> None:
    """Σ_j ‖what client i adds to the sum of part j‖² ≤ C², whatever it sends."""
    made, total = mean(), 0.0
    for part, size in enumerate(SIZES):
        changes = drawn(5, size, seed + part) * 10.0 ** (seed % 5 - 2)
        without = changes.clone()
        without[3] = 0  # as if it were not there: the denominator stays
        total += float(
            (released(made, changes, part) - released(made, without, part)).square().sum()
        )
    assert sqrt(total) * made.expected <= made.clip * (1 + 1e-9)


def test_parts_have_as_much_room_for_each_column() -> None:
    shares = part_shares(SIZES)
    assert sum(share**2 for share in shares) == pytest.approx(1)
    assert [share**2 / size for share, size in zip(shares, SIZES, strict=True)] == pytest.approx(
        [1 / 32] * 3
    )
    assert part_shares([4, 4, 4, 4]) == (0.5,) * 4, "C / √P"


def test_the_denominator_does_not_know_who_came() -> None:
    changes = drawn(5, 6) / 100  # none is clipped
    for here in (0, 2, 5):
        found = released(mean(), changes.clone(), here=here)
        torch.testing.assert_close(found, changes[:here].sum(0) / 5)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("part", [0, 2])
def test_noise_is_normal_with_the_deviation_that_is_said(part: int, local: bool) -> None:
    """z C / qM per coordinate in every part; by each of N clients √N times that."""
    made = mean(noise=1.5, local=local)
    changes = drawn(5, SIZES[part], 1)
    exact = released(mean(), changes.clone(), part)
    found = torch.stack(
        [released(made, changes.clone(), part, seed) - exact for seed in range(2000)]
    )
    wanted = 1.5 * 2.0 / 5 * (sqrt(5) if local else 1)
    count = found.numel()
    assert abs(float(found.mean())) < 4.5 * wanted / sqrt(count)
    assert float(found.var()) == pytest.approx(wanted**2, rel=4.5 * sqrt(2 / count))
    kurtosis = float((found / wanted).pow(4).mean())
    assert kurtosis == pytest.approx(3, abs=4.5 * sqrt(96 / count))
    between = torch.corrcoef(found.T) - torch.eye(found.shape[1])
    assert float(between.abs().max()) < 5 / sqrt(len(found))


def test_noise_is_another_one_for_every_seed_and_the_same_for_the_same() -> None:
    made, changes = mean(noise=1.0), drawn(5, 6)
    one, other, again = (released(made, changes.clone(), seed=seed) for seed in (1, 2, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def twin(
    clip: float,
    norms: list[list[float]],
    gamma: float,
    rate: float,
    noises: list[float],
    q_m: float,
) -> list[float]:
    """Andrew et al., algorithm 1, with a bit of a cycle: C after each cycle."""
    found = []
    for cycle, noise in zip(norms, noises, strict=True):
        bits = [1 / 2 if norm <= clip else -1 / 2 for norm in cycle]
        share = 1 / 2 + (sum(bits) + noise) / q_m
        clip *= exp(-rate * (share - gamma))
        found.append(clip)
    return found


def test_the_clip_follows_as_the_textbook_says() -> None:
    made = mean(quantile=Quantile(0.7, 0.3, 2.0), clip=20.0)
    notes: dict[str, Any] = {}
    clips, norms, noises = [], [], []
    for cycle in range(6):
        squares = torch.zeros(4, dtype=torch.float64)
        for part, size in enumerate(SIZES):
            changes = drawn(4, size, 10 * cycle + part) * (cycle + 1)
            squares += changes.square().sum(1)
            about = About(part, 1, cycle, torch.zeros(0), ())
            released(made, changes, part, cycle, notes, here=3)
        norms.append(squares.sqrt()[:3].tolist())
        noises.append(2.0 * float(made.draw(about, "share", squares[0])))
        clips.append(notes["clip"])
    assert clips == pytest.approx(twin(20.0, norms, 0.7, 0.3, noises, 5.0))
    assert notes.keys() == {"clip"}, "nothing else is remembered between cycles"


def test_the_clip_comes_to_the_quantile() -> None:
    made = PrivateMean(0.01, 0.0, (1.0,), 100.0, quantile=Quantile(0.5, 0.2, 0.5))
    notes: dict[str, Any] = {}
    for cycle in range(150):
        released(made, 3 * drawn(100, 8, 7), 0, cycle, notes, here=100)
    median = float((3 * drawn(100, 8, 7)).norm(dim=1).median())
    assert abs(log(notes["clip"] / median)) < 0.1


def test_bits_have_noise_of_their_own() -> None:
    made, about = mean(), About(0, 1, 5, torch.zeros(0), ())
    like = torch.zeros(1, dtype=torch.float64)
    assert not torch.equal(made.draw(about, "sum", like), made.draw(about, "share", like))


def test_every_client_is_drawn_with_its_probability_and_by_itself() -> None:
    who = Poisson.of(60, 0.2, every=3, seed=4)
    there = np.zeros((2000, 60))
    for cycle in range(2000):
        step = 3 * cycle + 1
        clients, present = who(step), who.present(step)
        assert len(set(clients.tolist())) == len(clients), "a client is in one slot"
        assert (who(step + 2) == clients).all(), "for the whole cycle"
        there[cycle, clients[present]] = 1
    each = there.mean(0)
    assert np.abs(each - 0.2).max() < 4.5 * sqrt(0.2 * 0.8 / 2000)
    counts = there.sum(1)
    assert counts.var() == pytest.approx(60 * 0.2 * 0.8, rel=0.15), "a fixed number has none"
    together = np.corrcoef(there.T) - np.eye(60)
    assert np.abs(together).max() < 5 / sqrt(2000)


def test_there_are_slots_for_all_who_are_ever_drawn() -> None:
    who = Poisson.of(60, 0.2, every=1)
    most = max(int(who.present(step).sum()) for step in range(1, CYCLES + 1))
    assert most == who.active < 60
    with pytest.raises(ValueError, match=f"slots were made for {CYCLES}"):
        who.present(CYCLES + 1)


def test_with_probability_1_all_are_there() -> None:
    who = Poisson.of(7, 1.0, every=2)
    assert who.active == 7
    assert who.present(3).all()


@pytest.mark.parametrize("quantile", [None, Quantile(0.5, 0.2, 3.0)])
def test_costs_of_a_cycle_add_up_to_one_and_bits_are_told_with_its_last_sum(
    quantile: Quantile | None,
) -> None:
    """A last sum that is made again tells its bits again: (c_j / C)² / z_Δ² + 1 / (2σ_b)²."""
    z = Privacy(clip=1.0, noise=1.1, quantile=0.5 if quantile else None, quantile_noise=3.0)
    made = PrivateMean(1.0, z.noise_of_sums(60), part_shares([1, 2, 3]), 60.0, quantile=quantile)
    costs = [made.cost(part, ends_cycle=part == 2) for part in range(3)]
    assert sum(costs) == pytest.approx(1)
    bits = (2 * 3.0) ** -2 if quantile else 0.0
    assert costs[2] / 1.1**2 == pytest.approx(0.5 / made.noise**2 + bits)
