"""What clients keep takes memory from when there is something."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg.core.bank import Bank

CLIENTS, WIDTH = 20, 3
DRAWS = st.lists(
    st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=6, unique=True), max_size=12
)


def filled(draws: list[list[int]]) -> tuple[Bank, torch.Tensor]:
    """A bank, and the table of all rows that it stands for."""
    first = torch.arange(3.0)[None]
    bank, table = Bank(first.clone(), CLIENTS), first.repeat(CLIENTS, 1)
    for number, clients in enumerate(draws, 1):
        some = torch.tensor(clients)
        rows = 100.0 * number + torch.arange(len(some) * WIDTH).view(-1, WIDTH)
        bank.put_(some, rows)
        table[some] = rows
    return bank, table


@given(DRAWS)
def test_it_gives_what_a_table_of_all_clients_would_give(draws: list[list[int]]) -> None:
    bank, table = filled(draws)
    assert torch.equal(bank.whole(), table)
    assert bank.known.tolist() == sorted({client for clients in draws for client in clients})
    some = torch.tensor([5, 0, 19, 5])
    assert torch.equal(bank.take(some), table[some])


@given(DRAWS, DRAWS)
def test_it_goes_on_from_a_state(before: list[list[int]], draws: list[list[int]]) -> None:
    (bank, table), (other, _) = filled(before), filled(draws)
    other.load_({name: tensor.clone() for name, tensor in bank.state().items()})
    assert torch.equal(other.whole(), table)
    assert torch.equal(other.known, bank.known)
    other.load_(table)  # as 0.1 saved it
    assert torch.equal(other.whole(), table)


@given(DRAWS)
def test_some_columns_can_be_made_the_same_for_all(draws: list[list[int]]) -> None:
    bank, table = filled(draws)
    bank.fill_(slice(1, 3), torch.tensor([-1.0, -2.0]))
    table[:, 1:3] = torch.tensor([-1.0, -2.0])
    assert torch.equal(bank.whole(), table)


def test_rows_of_clients_that_were_never_put_away_take_no_memory() -> None:
    bank = Bank(torch.zeros(1, 8), 100_000)
    for clients in torch.split(torch.arange(0, 90_000, 100), 30):
        bank.put_(clients, torch.ones(len(clients), 8))
    assert len(bank.known) == 900
    assert sum(map(len, bank._blocks)) <= 2 * 900
    assert len(bank._blocks) <= 7


def test_what_is_taken_and_what_was_given_may_be_changed() -> None:
    bank, table = filled([[1, 2], [3]])
    rows = torch.ones(2, WIDTH)
    bank.put_(torch.tensor([1, 2]), rows)
    table[1:3] = 1.0
    for taken in (rows, bank.take(torch.tensor([1, 7]))):
        taken.fill_(9.0)
    assert torch.equal(bank.whole(), table)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_rows_are_of_the_type_of_the_first(dtype: torch.dtype) -> None:
    bank = Bank(torch.zeros(1, 2, dtype=dtype), 4)
    bank.put_(torch.tensor([3]), torch.ones(1, 2, dtype=dtype))
    assert bank.whole().dtype == dtype
