"""Test samples for each client, like its training samples."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg.data.split import dirichlet, iid, writer
from partavg.data.test_split import split_alike, split_by_owner


@given(
    clients=st.integers(1, 12), classes=st.integers(2, 6), each=st.integers(12, 30),
    alpha=st.sampled_from([0.4, 10.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_each_class_goes_out_in_the_proportions_of_training(
    clients: int, classes: int, each: int, alpha: float, seed: int
) -> None:
    """Of each class there are enough to test on, even if all clients own that one only."""
    tested = classes * each
    labels, test = torch.arange(240) % classes, torch.arange(tested) % classes
    split = dirichlet(labels, clients, seed, alpha=alpha, minimum=1)
    found = split_alike(labels, split, test, seed)
    dealt = torch.cat(found)
    assert sorted(dealt.tolist()) == list(range(tested)), "each sample once"
    assert all(len(own) for own in found)
    moved = 0
    for client, own in enumerate(found):
        for label in range(classes):
            mine, theirs = (labels[split[client]] == label).sum(), (labels == label).sum()
            share = float(mine / theirs * (test == label).sum())
            got = int((test[own] == label).sum())
            assert mine or not got, "no class that it does not own"
            moved += abs(got - share) >= 1
    # Only what was moved to clients that had nothing is further from its share.
    assert moved <= 2 * sum(len(own) == 1 for own in found)


def test_rounding_does_not_favor_anybody() -> None:
    """Ten classes of which each client should get half a sample: five in all."""
    labels, test = torch.arange(400) % 10, torch.arange(100) % 10
    found = split_alike(labels, iid_by_class(labels, 20), test)
    assert [len(own) for own in found] == [5] * 20


def iid_by_class(labels: torch.Tensor, clients: int) -> list[torch.Tensor]:
    """As many samples of each class for each client."""
    order = labels.argsort(stable=True).view(int(labels.max()) + 1, -1)
    return [order[:, client::clients].reshape(-1) for client in range(clients)]


def test_too_few_samples_leave_somebody_out() -> None:
    labels = torch.zeros(40, dtype=torch.long)
    found = split_alike(labels, iid(labels, 4, 0), labels[:3])
    assert sorted(map(len, found)) == [0, 1, 1, 1]


def test_a_class_that_nobody_owns_goes_to_nobody() -> None:
    labels, test = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 2])
    found = split_alike(labels, [torch.tensor([0, 1]), torch.tensor([2, 3])], test)
    assert [own.tolist() for own in found] == [[0], [1]]


@pytest.mark.parametrize("targets", [torch.zeros(30), torch.zeros(30, 2, dtype=torch.long)])
def test_targets_that_are_no_classes_are_dealt_by_number(targets: torch.Tensor) -> None:
    split = list(torch.split(torch.arange(30), [5, 10, 15]))
    found = split_alike(targets, split, targets[:12])
    assert [len(own) for own in found] == [2, 4, 6]


def test_another_seed_deals_others() -> None:
    labels = torch.zeros(40, dtype=torch.long)
    split = iid(labels, 2, 0)
    one, same, other = (split_alike(labels, split, labels, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_writers_are_tested_on_what_they_wrote() -> None:
    writers, test = torch.arange(60) % 12, torch.arange(30) % 13
    split = writer(writers, 5, 0)
    found = split_by_owner(writers, split, test)
    for own, tested in zip(split, found, strict=True):
        assert set(test[tested].tolist()) == set(writers[own].tolist())
    assert len(torch.cat(found)) == 30 - int((test == 12).sum()), "of a stranger: nobody's"


def test_who_shares_a_writer_is_tested_on_those_it_has_most_of() -> None:
    writers = torch.tensor([3, 3, 3, 4])
    split = [torch.tensor([0]), torch.tensor([1, 2, 3])]
    assert [own.tolist() for own in split_by_owner(writers, split, torch.tensor([3, 4]))] == [
        [], [0, 1],
    ]  # fmt: skip


def test_labels_and_splits_of_any_kind() -> None:
    labels, test = torch.tensor([-1, 9, -1, 9]), torch.tensor([9, -1])
    split = [torch.tensor([0, 2]), torch.tensor([1, 3])]
    wanted = [[1], [0]]
    for known in (labels, labels.numpy(), labels.tolist()):
        mask = [[True, False, True, False], [1, 3]]
        for owned in (split, mask, [[0, 2], [1, 3]]):
            found = split_alike(known, owned, test)
            assert [own.tolist() for own in found] == wanted
    by_name = split_by_owner(["ann", "bob", "ann", "bob"], split, np.array(["bob", "ann", "eve"]))
    assert [own.tolist() for own in by_name] == wanted


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: split_alike([0, 1], [[0], [2]], [0]), "worker 1 owns sample 2, and there are 0"),
        (lambda: split_alike(["a", "b"], [[0], [1]], ["a"]), "the labels are text"),
        (lambda: split_alike(None, [[0]], [0]), "the labels"),
        (lambda: split_alike(torch.zeros(2), [[0], [1]], 3), "give one for each sample"),
        (lambda: split_alike([0, 1], "ab", [0]), "the split is 'ab'"),
        (lambda: split_by_owner([0.5], [[0]], [0]), "the client ids are floating point"),
        (lambda: split_by_owner([[1]], [[0]], [0]), "the client ids are of shape"),
    ],
)
def test_what_cannot_be_dealt(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
