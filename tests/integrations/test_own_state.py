"""What ranks keep beside a checkpoint, without a framework: other ranks, files that lack."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.frameworks import apart, copy, distance
from tests.ranks import Ranks, started
from torch import nn

import partavg
from partavg.integrations.own_state import OwnState, read_from, write


def attached(rank: int, **options: Any) -> OwnState:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return OwnState(model, [optimizer], partavg.attach(model, optimizer, **options))


def step(own: OwnState, rank: int) -> None:
    draw = torch.Generator().manual_seed(rank)
    own.model(torch.randn(8, 3, generator=draw, dtype=torch.float64)).square().mean().backward()
    own.optimizers[0].step()


def save(rank: int, folder: Path) -> dict[str, Any]:
    """Ranks that are apart after five steps, and have saved that."""
    own = attached(rank, interval=4)
    for _ in range(5):
        step(own, rank)
    write(own, folder)
    own.averager.detach()
    return copy(own.model)


def load(rank: int, folder: Path) -> tuple[dict[str, Any], float, int]:
    """The model after loading, how far apart the ranks are, and the steps of the optimizer."""
    own = attached(rank, interval=4)
    own.load(read_from(folder))
    loaded, from_mean = copy(own.model), apart(copy(own.model))
    step(own, rank)
    taken = {int(state["step"]) for state in own.optimizers[0].state_dict()["state"].values()}
    own.averager.consensus()
    own.averager.detach()
    assert apart(copy(own.model)) < 1e-12
    return loaded, from_mean, taken.pop()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_runs_go_on_with_other_numbers_of_ranks(count: int, ranks: Ranks, tmp_path: Path) -> None:
    before = ranks(save, tmp_path)
    with started(count) as others:
        found = others(load, tmp_path)
    for loaded, from_mean, taken in found:
        assert taken == 6
        assert (from_mean > 1e-3) == (count == len(ranks)), "each goes on with its own model"
        if count > len(ranks):
            mean = {name: sum(own[name] for own in before) / len(before) for name in loaded}
            assert distance(loaded, mean) < 1e-12
    if count <= len(ranks):
        assert distance(found[0][0], before[0]) < 1e-12


def lacking(rank: int, folder: Path) -> tuple[list[str], float]:
    """What is warned of where the first rank's file is gone, and the distance to the start."""
    import warnings

    own = attached(rank, interval=4)
    start = copy(own.model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.load(read_from(folder))
    own.averager.detach()
    return [str(warning.message) for warning in caught], distance(copy(own.model), start)


def test_ranks_that_find_nothing_begin_with_the_model_that_they_have(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks(save, tmp_path)
    (tmp_path / "partavg-rank0.pt").unlink()
    for said, moved in ranks(lacking, tmp_path):
        assert ["beside the checkpoint is no state" in sentence for sentence in said] == [True]
        assert moved == 0
