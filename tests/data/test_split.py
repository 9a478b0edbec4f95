import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg.data.split import SPLITS, dirichlet, iid

LABELS = torch.arange(10).repeat_interleave(100)


@given(st.sampled_from(sorted(SPLITS)), st.integers(1, 20), st.integers(0, 99))
def test_every_sample_has_one_owner(name: str, workers: int, seed: int) -> None:
    split = SPLITS[name](LABELS, workers, seed)
    assert len(split) == workers
    assert torch.equal(torch.cat(split).sort().values, torch.arange(len(LABELS)))


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_a_split_depends_on_the_seed_alone(name: str) -> None:
    draws = [SPLITS[name](LABELS, 8, seed) for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(draws[0], draws[2], strict=True))


def test_iid_is_even() -> None:
    sizes = [len(samples) for samples in iid(LABELS, 7, 0)]
    assert max(sizes) - min(sizes) <= 1


def largest_share(alpha: float) -> float:
    """How much of a worker's samples are of its most frequent class, on average."""
    split = dirichlet(LABELS, 8, 0, alpha=alpha)
    shares = [LABELS[samples].bincount().max() / len(samples) for samples in split]
    return float(torch.stack(shares).mean())


def test_small_alpha_is_uneven_and_large_alpha_is_even() -> None:
    assert largest_share(0.1) > 0.4
    assert largest_share(1000.0) < 0.15


def test_balanced_keeps_workers_from_growing_past_their_share() -> None:
    sizes = {
        balanced: [len(s) for s in dirichlet(LABELS, 8, 1, alpha=0.3, balanced=balanced)]
        for balanced in (True, False)
    }
    spread = {key: max(value) - min(value) for key, value in sizes.items()}
    assert spread[True] < spread[False]
    # One class can overshoot the share by at most its own size.
    assert max(sizes[True]) < 1000 / 8 + 100


def test_every_worker_gets_the_minimum() -> None:
    assert min(len(s) for s in dirichlet(LABELS, 20, 0, alpha=0.3, minimum=25)) >= 25


@pytest.mark.parametrize(
    ("workers", "options", "sentence"),
    [
        (0, {}, "0 workers cannot train: use 1 or more"),
        (1001, {}, "1001 workers cannot share 1000 samples: use at most 1000 workers"),
        (8, {"alpha": 0.0}, "alpha 0.0 is not a number above 0"),
        (8, {"alpha": -1.0}, "alpha -1.0 is not a number above 0"),
        (8, {"alpha": float("inf")}, "alpha inf is not a number above 0"),
        (101, {}, "101 workers cannot own 10 of 1000 samples each"),
        (90, {"alpha": 0.01}, "none of 1000 draws with alpha 0.01 gave all 90 workers 10 samples"),
    ],
)
def test_impossible_splits_are_refused(workers: int, options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dirichlet(LABELS, workers, 0, **options)
