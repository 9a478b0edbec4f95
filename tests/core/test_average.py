import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles
from tests.strategies import partitions, rows

from partavg.core.average import collect, consensus, deliver_, discrepancy, per_part
from partavg.core.cuts import contiguous
from partavg.core.layout import Layout
from partavg.core.partition import Partition
from partavg.core.reduce import alone
from partavg.core.solver import Sync
from partavg.core.views import Slices
from partavg.solvers.sgd import SGD


def weights_of(workers: int, seed: int) -> torch.Tensor:
    shares = torch.rand(workers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return shares / shares.sum()


def average_(params: torch.Tensor, partition: Partition, part: int, weights: torch.Tensor) -> int:
    clock = torch.ones(len(params), 1, dtype=torch.float64)
    sync, spans = Sync(clock, clock, clock), partition.parts[part]
    columns = Slices(params, spans), Slices(params[:, :0], ())
    arriving, lengths = collect(
        *columns, {}, spans, solver=SGD(), sync=sync, weights=weights, reduce=alone
    )
    deliver_(*columns, arriving(), lengths, {}, spans, solver=SGD(), sync=sync)
    return sum(lengths)


@given(partitions(), st.integers(1, 7), st.integers(0, 99))
def test_averaging_a_part(case: tuple[Layout, Partition], workers: int, seed: int) -> None:
    layout, partition = case
    weights = weights_of(workers, seed)
    part = seed % len(partition.parts)
    before = rows(workers, layout.size, seed)
    after = before.clone()
    length = average_(after, partition, part, weights)

    due = partition.owners() == part
    assert length == due.sum()
    assert torch.equal(after[:, ~due], before[:, ~due]), "other columns are bit-identical"
    assert torch.equal(after[:, due], after[:1, due].expand(workers, -1)), "all workers agree"
    mean = consensus(before, weights)
    torch.testing.assert_close(consensus(after, weights), mean, rtol=0, atol=1e-12)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 99))
def test_discrepancy_is_that_of_the_paper(workers: int, size: int, seed: int) -> None:
    params = rows(workers, size, seed)
    uniform = torch.full((workers,), 1 / workers, dtype=torch.float64)
    columns = discrepancy(params, uniform)
    assert float(columns.sum()) == pytest.approx(oracles.discrepancy(list(params.numpy())))

    partition = contiguous(Layout(("w",), ((size,),)), min(3, size))
    parts = per_part(columns, partition.owners(), len(partition.parts))
    for part, spans in enumerate(partition.parts):
        selected = [row[spans[0].start : spans[0].stop] for row in params.numpy()]
        assert float(parts[part]) == pytest.approx(oracles.discrepancy(selected))


def test_discrepancy_in_blocks_equals_discrepancy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    params = rows(4, 1000, 0)
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    expected = discrepancy(params, uniform)
    monkeypatch.setattr("partavg.core.views._BLOCK", 64)
    assert torch.equal(discrepancy(params, uniform), expected)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_averaging_is_multiplication_by_the_papers_matrices(m: int) -> None:
    """Stacking worker after worker, part j of all workers is multiplied by P_(j,k)."""
    tau, d = 3, 7
    partition = contiguous(Layout(("w",), ((d,),)), tau)
    uniform = torch.full((m,), 1 / m, dtype=torch.float64)
    params = rows(m, d, 0)
    for k in range(1, 7):
        before = params.clone()
        average_(params, partition, k % tau, uniform)
        for j in range(tau):
            ((start, stop),) = partition.parts[j]
            matrix = oracles.averaging_matrix(j, k, tau, m, stop - start)
            expected = matrix @ before[:, start:stop].reshape(-1).numpy()
            np.testing.assert_allclose(params[:, start:stop].reshape(-1).numpy(), expected)


def test_the_papers_matrices_have_the_papers_properties() -> None:
    tau, m, d_j = 3, 4, 2
    for j in range(tau):
        J = oracles.averaging_matrix(j, j, tau, m, d_j)
        for k in range(1, 7):
            P = oracles.averaging_matrix(j, k, tau, m, d_j)
            np.testing.assert_allclose(P.sum(1), 1)
            np.testing.assert_allclose(J @ P, J)
            for other in range(1, 7):
                product = P @ oracles.averaging_matrix(j, other, tau, m, d_j)
                np.testing.assert_allclose(product, product.T)
                blocks = product.reshape(m, d_j, m, d_j)
                assert not blocks[:, 0, :, 1].any(), "parameters never mix, only workers"
    # The paper prints [[½, 0], [0, ½]] here, which does not average.
    np.testing.assert_allclose(oracles.averaging_matrix(1, 1, 2, 2, 1), np.full((2, 2), 0.5))
