from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg.data.clients import by_client, writer
from partavg.data.saved_split import save, saved
from partavg.data.split import (
    BY_CLIENT,
    SPLITS,
    by_label,
    by_quantity,
    dirichlet,
    iid,
    shards,
)

LABELS = torch.arange(10).repeat_interleave(100)
GROUPS = torch.arange(1000) * 7 % 31


DRAWN = sorted(SPLITS.keys() - {"saved"})


@given(st.sampled_from(DRAWN), st.integers(1, 20), st.integers(0, 99))
def test_every_sample_has_one_owner(name: str, workers: int, seed: int) -> None:
    options = {"classes": max(2, -(-10 // workers))} if name == "by_label" else {}
    split = SPLITS[name](GROUPS if name in BY_CLIENT else LABELS, workers, seed, **options)
    assert len(split) == workers
    assert torch.equal(torch.cat(split).sort().values, torch.arange(len(LABELS)))


@pytest.mark.parametrize("name", DRAWN)
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


def test_permuted_labels_keep_the_sizes_and_make_the_classes_even() -> None:
    labels = torch.arange(10).repeat(1000)
    true, permuted, again, other = (
        dirichlet(labels, 8, seed, alpha=0.1, balanced=False, labels=kind)
        for seed, kind in ((0, "true"), (0, "permuted"), (0, "permuted"), (1, "permuted"))
    )
    assert [len(own) for own in permuted] == [len(own) for own in true]
    assert max(map(len, permuted)) > 4 * min(map(len, permuted)), "alpha makes the sizes uneven"
    for own in permuted:
        expected, found = len(own) / 10, labels[own].bincount(minlength=10)
        assert (found - expected).abs().max() < 5 * expected**0.5
    assert all(torch.equal(a, b) for a, b in zip(permuted, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(permuted, other, strict=True))


def test_every_worker_gets_the_minimum() -> None:
    assert min(len(s) for s in dirichlet(LABELS, 20, 0, alpha=0.3, minimum=25)) >= 25


@pytest.mark.parametrize(
    ("workers", "options", "sentence"),
    [
        (0, {}, "0 workers cannot train: use 1 or more"),
        (1001, {}, "1001 workers cannot own 10 of 1000 samples each: use at most 100 workers"),
        (1001, {"minimum": 1}, "1001 workers cannot share 1000 samples: use at most 1000 workers"),
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


def test_few_shards_are_few_classes_and_even() -> None:
    split = shards(LABELS, 25, 0, shards=2)
    assert all(len(samples) == 40 for samples in split)
    assert max(len(LABELS[samples].unique()) for samples in split) <= 2
    many = shards(LABELS, 25, 0, shards=20)
    assert min(len(LABELS[samples].unique()) for samples in many) > 4


def test_a_writers_samples_stay_together() -> None:
    split = writer(GROUPS, 8, 0)
    owners = [set(GROUPS[samples].tolist()) for samples in split]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 31
    assert {len(each) for each in owners} == {3, 4}


def test_some_writers_for_each_worker() -> None:
    split = writer(GROUPS, 8, 0, each=2)
    assert [len(GROUPS[samples].unique()) for samples in split] == [2] * 8
    assert len(torch.cat(split).unique()) == sum(map(len, split))


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: writer(GROUPS, 32, 0), "32 workers cannot have 1 of 31 writers each"),
        (lambda: writer(GROUPS, 8, 0, each=4), "8 workers cannot have 4 of 31 writers each"),
        (lambda: shards(LABELS, 10, 0, shards=0), "10 workers cannot own 0 shards each of 1000"),
        (lambda: shards(LABELS, 10, 0, shards=101), "use 1 to 100 shards"),
    ],
)
def test_impossible_groups_are_refused(draw: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        draw()


def test_a_split_is_saved_and_read_back(tmp_path: Path) -> None:
    split = dirichlet(LABELS, 8, 0)
    path = tmp_path / "split.npz"
    save(split, path)
    again = saved(LABELS, 8, 99, path=str(path))
    assert all(torch.equal(a, b) for a, b in zip(split, again, strict=True))
    with pytest.raises(ValueError, match="over 8 workers, not 9: use training"):
        saved(LABELS, 9, 0, path=str(path))
    with pytest.raises(
        ValueError, match="1000 samples or more, and there are 500: use the dataset"
    ):
        saved(LABELS[:500], 8, 0, path=str(path))
    for content in (b"nonsense", b"", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a saved split"):
            saved(LABELS, 8, 0, path=str(path))
    for indices, counts in (([0.5], [1]), ([[0]], [1]), ([0, 1], [1]), ([-1, 1], [1, 1])):
        np.savez(path, indices=np.array(indices), counts=np.array(counts))
        with pytest.raises(ValueError, match="its numbers do not fit together"):
            saved(LABELS, 1, 0, path=str(path))


def test_clients_are_workers_in_the_order_of_their_names() -> None:
    names = ["bob", "ann", "bob", "eve"]
    for ids in (names, np.array(names), np.array(names, object)):
        assert [own.tolist() for own in by_client(ids)] == [[1], [0, 2], [3]]
    assert [own.tolist() for own in by_client(torch.tensor([9, 3, 9, 4]))] == [[1], [3], [0, 2]]


@pytest.mark.parametrize("each", [0, 2])
def test_groups_own_the_samples_of_their_clients(each: int) -> None:
    names = np.array([f"client {number}" for number in GROUPS.tolist()])
    for ids in (names, names.astype(object), GROUPS):
        for split in (by_client(ids, 8, 3, each=each), writer(ids, 8, 3, each=each)):
            for own in split:
                members = set(np.asarray(ids)[own].tolist())
                theirs = [place for place, one in enumerate(ids.tolist()) if one in members]
                assert own.tolist() == theirs


def test_clients_are_dealt_over_fewer_workers() -> None:
    split = by_client(GROUPS, workers=8, seed=3)
    owners = [set(GROUPS[samples].tolist()) for samples in split]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 31
    assert all(torch.equal(a, b) for a, b in zip(split, writer(GROUPS, 8, 3), strict=True))
    some = by_client(GROUPS, workers=8, seed=3, each=2)
    assert [len(GROUPS[samples].unique()) for samples in some] == [2] * 8


def test_quantities_are_uneven_and_labels_are_not() -> None:
    uneven, even = (
        [len(own) for own in by_quantity(LABELS, 8, 0, alpha=alpha, minimum=20)]
        for alpha in (0.5, 1000.0)
    )
    assert max(uneven) > 3 * min(uneven) >= 60
    assert max(even) < 1.2 * min(even)
    largest = max(by_quantity(LABELS, 8, 0, alpha=0.5), key=len)
    shares = LABELS[largest].bincount(minlength=10) / len(largest)
    assert float(shares.max()) < 0.2, "all classes are there, about evenly"


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_every_worker_owns_exactly_so_many_classes(classes: int) -> None:
    split = by_label(LABELS, 15, 0, classes=classes)
    owned = [LABELS[own].unique() for own in split]
    assert {len(own) for own in owned} == {classes}
    owners = torch.cat(owned).bincount()
    assert int(owners.max() - owners.min()) <= 1, "no class has many more owners"
    for label in range(10):
        shares = [int((LABELS[own] == label).sum()) for own in split]
        shares = [share for share in shares if share]
        assert max(shares) - min(shares) <= 1, "owners share a class evenly"


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: by_client(GROUPS, 32), "32 workers cannot have 1 of 31 clients each: use 31"),
        (lambda: by_client(GROUPS, 8, each=4), "8 workers cannot have 4 of 31 clients each: use 7"),
        (lambda: by_client([0, 0, 1], minimum=2), "2 workers cannot own 2 of 3 samples each"),
        (lambda: by_client([0, 0, 0, 1], minimum=2), "worker 1 owns 1 samples of its clients"),
        (lambda: by_client([0.5, 1.5]), "client ids are floating point"),
        (lambda: by_client([[0], [1]]), r"client ids are of shape \[2, 1\]"),
        (lambda: by_client([]), "there are no client ids"),
        (lambda: by_label(LABELS, 4, 0), "4 workers of 2 classes each cannot own all 10 classes"),
        (lambda: by_label(LABELS, 4, 0, classes=11), "use 3 to 10 classes"),
        (lambda: by_label([0, 1, 1], 3, 0, classes=1), "class 0 has 1 samples for 2 workers"),
        (lambda: by_label(LABELS, 100, 0, minimum=11), "100 workers cannot own 11 of 1000"),
        (lambda: by_quantity(LABELS, 101, 0), "use at most 100 workers"),
        (lambda: by_quantity(LABELS, 9, 0, alpha=0.0), "alpha 0.0 is not a number above 0"),
        (lambda: dirichlet(torch.zeros(64, 3).long(), 4, 0), r"labels are of shape \[64, 3\]"),
        (lambda: dirichlet(torch.rand(64), 4, 0), r"labels are floating point \(float32\)"),
        (lambda: dirichlet(torch.rand(64).bfloat16(), 4, 0), "labels are floating point"),
        (lambda: dirichlet(torch.rand(64) > 0.5, 4, 0), "labels are true or false"),
        (lambda: dirichlet(["cat", "dog"] * 32, 4, 0), "labels are text"),
        (lambda: dirichlet([[1], [2, 3]], 2, 0), "labels cannot be read"),
        (lambda: shards(torch.rand(64), 4, 0), "labels are floating point"),
        (lambda: by_label(torch.rand(64), 4, 0), "labels are floating point"),
        (lambda: iid(64, 4, 0), "labels are int: give one for each sample"),
    ],
)
def test_what_cannot_be_split_is_refused(draw: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        draw()


@pytest.mark.parametrize("form", [list, np.array, torch.Tensor.int])
def test_labels_in_any_form(form: Callable[..., object]) -> None:
    known = LABELS if form is torch.Tensor.int else LABELS.tolist()
    for ours, theirs in zip(dirichlet(form(known), 4, 0), dirichlet(LABELS, 4, 0), strict=True):
        assert torch.equal(ours, theirs)


def test_any_targets_can_be_dealt_evenly() -> None:
    for targets in (torch.rand(64, 3), torch.rand(64), np.zeros(64), ["a"] * 64):
        assert [len(own) for own in iid(targets, 4, 0)] == [16] * 4
