"""Splits as users give them: understood, or refused with the worker's number."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from partavg import Schedule, Simulation
from partavg.data.ownership import check_workers, checked_split

MASK = torch.tensor([True, False, True, False, False, True])
INDICES = torch.tensor([0, 2, 5])

FORMS: list[Any] = [
    INDICES, INDICES.int(), INDICES.tolist(), tuple(INDICES.tolist()), INDICES.numpy(),
    INDICES.numpy().astype(np.uint16), MASK, MASK.numpy(), MASK.tolist(),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_indices_is_understood(form: Any) -> None:
    for split in ([form, [1]], (form, np.array([1]))):
        found = checked_split(split, 6)
        assert [own.tolist() for own in found] == [[0, 2, 5], [1]]
        assert all(own.dtype == torch.int64 for own in found)


def test_rows_of_a_table_are_workers() -> None:
    for table in (torch.arange(6).view(2, 3), np.arange(6).reshape(2, 3)):
        assert [own.tolist() for own in checked_split(table, 6)] == [[0, 1, 2], [3, 4, 5]]


def test_workers_may_share_samples_and_keep_their_order() -> None:
    assert [own.tolist() for own in checked_split([[5, 0], [0, 5]], 6)] == [[5, 0], [0, 5]]


def test_samples_owned_twice_are_said() -> None:
    with pytest.warns(UserWarning, match="worker 1 owns 2 samples more than once"):
        found = checked_split([[0], [3, 3, 3, 4]], 6)
    assert found[1].tolist() == [3, 3, 3, 4]


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ([[0], torch.tensor([1.0])], "worker 1 owns indices of float32: give whole numbers"),
        ([[0], [0.5]], "worker 1 owns indices of float64"),
        ([[0], [-1]], "worker 1 owns sample -1, and there are 0 to 5"),
        ([[0, 6]], "worker 0 owns sample 6, and there are 0 to 5"),
        ([[0], []], "worker 1 owns no samples"),
        ([[0], torch.empty(0)], "worker 1 owns no samples"),
        ([MASK, torch.zeros(6, dtype=torch.bool)], "worker 1 owns no samples"),
        ([MASK[:4], [1]], "worker 0 has a mask of 4 samples, and there are 6"),
        ([MASK.long(), (~MASK).long()], "worker 0 owns samples 0 and 1 only, 6 times: give a mask"),
        ([torch.nonzero(MASK)], r"worker 0 owns indices of shape \[3, 1\]: give a flat list"),
        ([np.where(MASK)], r"worker 0 owns indices of shape \[1, 3\]"),
        ([[0], [[1], [2, 3]]], "worker 1 owns a list that is uneven"),
        ([[0], "12"], "worker 1 owns '12': give a list of indices"),
        ([[0], ["1", "2"]], "worker 1 owns indices of <U1"),
        ([[0], 3], "worker 1 owns 3: give a list of indices"),
        ([[0], {1, 2}], "worker 1 owns set"),
        ([[0], [None, 1]], "worker 1 owns indices of object"),
        ([0, 1, 2], "worker 0 owns 0: give a list"),
        (torch.arange(4), "worker 0 owns indices of shape"),
        ([], "the split has no workers"),
        ("iid", "the split is 'iid': give a list with the indices"),
        ({0: [1]}, "the split is dict: give a list"),
        (None, "the split is None"),
        (7, "the split is 7"),
    ],
)
def test_what_is_no_split_is_refused(split: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        checked_split(split, 6)


def test_another_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"split\.name = 'mine' is for 2 workers, not 3"):
        checked_split([[0], [1]], 6, 3, "split.name = 'mine'")
    with pytest.raises(ValueError, match=r"split\.name = 'mine': worker 1 owns sample 9"):
        checked_split([[0], [9]], 6, 2, "split.name = 'mine'")


@pytest.mark.parametrize("workers", [2.5, "4", None, True])
def test_a_number_of_workers_is_a_number(workers: Any) -> None:
    with pytest.raises(ValueError, match="is no whole number"):
        check_workers(100, workers)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner),
    max_leaves=12,
)


@given(anything)
@pytest.mark.filterwarnings("ignore:worker")
def test_nothing_else_happens(split: Any) -> None:
    """Whatever it is, it is a split of six samples or a ValueError."""
    try:
        found = checked_split(split, 6)
    except ValueError:
        return
    assert all(len(own) and 0 <= int(own.min()) <= int(own.max()) < 6 for own in found)


def test_masks_train_on_what_they_mark() -> None:
    """Of the trial: batches drew samples 0 and 1 only."""
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    options: dict[str, Any] = {"schedule": Schedule.partial(2), "lr": 0.1, "engine": "looped"}
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    by_mask = Simulation(model, F.cross_entropy, (x, y), [y == 0, y == 1], **options)
    indices = [torch.nonzero(y == k).flatten() for k in (0, 1)]
    by_index = Simulation(model, F.cross_entropy, (x, y), indices, **options)
    for simulation in (by_mask, by_index):
        list(simulation.train(6))
    assert torch.equal(by_mask.workers.params, by_index.workers.params)
    assert by_mask._batch(1).targets.unique(dim=1).tolist() == [[0], [1]]


@given(st.lists(st.lists(st.integers(-1, 6), min_size=0, max_size=4), min_size=1, max_size=4))
def test_tensors_are_judged_as_lists_are(split: list[list[int]]) -> None:
    """Tensors are looked at all at once, lists one by one."""

    def judged(form: Callable[[list[int]], Any]) -> object:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found: Any = [own.tolist() for own in checked_split(list(map(form, split)), 6)]
            except ValueError as error:
                found = str(error)
        return found, [str(one.message) for one in said]

    assert judged(lambda own: torch.tensor(own, dtype=torch.int64)) == judged(list)


def test_a_split_is_a_copy() -> None:
    given = [torch.tensor([0, 1]), torch.tensor([2])]
    found = checked_split(given, 3)
    given[0][0] = 2
    assert found[0].tolist() == [0, 1]
