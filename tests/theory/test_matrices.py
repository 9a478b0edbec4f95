"""The averaging matrices: the properties that the appendix lists, and what the loop does."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracles
from tests.strategies import rows, schedules

from partavg.core.schedule import Schedule
from partavg.theory import averaging_matrix, full_matrix


@settings(max_examples=25)
@given(schedules(), st.integers(1, 4), st.integers(1, 3), st.data())
def test_properties(schedule: Schedule, workers: int, columns: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, schedule.parts - 1))
    steps = data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=4))
    J = full_matrix(workers, columns)
    ones = torch.ones(workers * columns, dtype=torch.float64)
    product = torch.eye(workers * columns, dtype=torch.float64)
    for step in steps:
        P = averaging_matrix(schedule, part, step, workers=workers, columns=columns)
        torch.testing.assert_close(P @ ones, ones)
        torch.testing.assert_close(J @ P, J)
        product = product @ P
    torch.testing.assert_close(product, product.T)
    blocks = product.view(workers, columns, workers, columns)
    off = ~torch.eye(columns, dtype=torch.bool)
    assert not blocks.transpose(1, 2)[..., off].any(), "columns are never mixed, only workers"
    # Lemma: ‖(I − J) x‖ ≤ ‖x‖.
    assert torch.linalg.matrix_norm(torch.eye(len(J)).double() - J, 2) <= 1 + 1e-12


def test_in_one_cycle_every_part_is_averaged_once() -> None:
    for schedule in (Schedule.partial(6), Schedule(6, 2), Schedule.periodic(6)):
        for part in range(schedule.parts):
            found = [
                averaging_matrix(schedule, part, step, workers=2, columns=1) for step in range(1, 7)
            ]
            assert sum(bool(matrix[0, 1]) for matrix in found) == 1


def test_the_matrix_averages_as_the_paper_says() -> None:
    tau, workers, columns = 3, 4, 2
    x = rows(workers, columns, 0)
    for part in range(tau):
        for step in range(1, 7):
            P = averaging_matrix(
                Schedule.partial(tau), part, step, workers=workers, columns=columns
            )
            expected = oracles.averaging_matrix(part, step, tau, workers, columns)
            np.testing.assert_array_equal(P.numpy(), expected)
    averaged = (full_matrix(workers, columns) @ x.flatten()).view(workers, columns)
    torch.testing.assert_close(averaged, x.mean(0).expand(workers, -1))


def test_impossible_matrices() -> None:
    with pytest.raises(ValueError, match="0 workers with 2 columns: there must be one of each"):
        full_matrix(0, 2)
    with pytest.raises(ValueError, match="part 3 of 3: count them from 0"):
        averaging_matrix(Schedule.partial(3), 3, 1, workers=2, columns=1)
