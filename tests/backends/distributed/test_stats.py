"""Seconds of compute, waiting and exchange, with a clock that the tests turn."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.backends.distributed.loops import WORKERS
from tests.ranks import Ranks
from torch import nn

import partavg
from partavg.backends.distributed import stopwatch, trailer
from partavg.backends.distributed.stopwatch import Stopwatch
from partavg.sinks.sink import RunInfo, numbers
from partavg.sinks.tensorboard import TensorBoard

STEPS = 6


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stopwatch_tells_waiting_from_exchange() -> None:
    clock = Clock()

    def arriving(seconds: float) -> Any:
        def wait() -> torch.Tensor:
            clock.now += seconds
            return torch.ones(1)

        return wait

    with patch.object(stopwatch, "perf_counter", clock):
        watch = Stopwatch(torch.device("cpu"))
        clock.now += 5
        assert watch.timed(arriving(3), lambda: 2.0)() == 1  # the slowest came 2 s later
        clock.now += 1
        sent = watch.timed(arriving(0.5), lambda: 4.0)  # most of the wait went by meanwhile
        clock.now += 4
        sent()
    assert (watch.compute, watch.waiting, watch.exchange) == (10.0, 2.5, 1.0)


def told(rank: int, options: dict[str, Any]) -> dict[str, float]:
    """Ranks of different speed: rank r takes r + 1 s for a step."""
    torch.manual_seed(rank)
    net, clock = nn.Linear(3, 2), Clock()
    with (
        patch.object(stopwatch, "perf_counter", clock),
        patch.object(trailer, "perf_counter", clock),
    ):
        averager = partavg.attach(net, interval=2, **options)
        for _ in range(STEPS):
            clock.now += rank + 1
            averager.step()
        stats = averager.stats()
        averager.detach()
    return stats


@pytest.mark.parametrize("options", [{}, {"parts": 1}, {"wire": "int8"}])
def test_all_ranks_know_how_long_each_computes(ranks: Ranks, options: dict[str, Any]) -> None:
    found = ranks(told, options)
    for rank, stats in enumerate(found):
        assert all(type(value) is float for value in stats.values())
        assert (stats["steps"], stats["skipped_steps"]) == (STEPS, 0)
        assert stats["messages"] == STEPS / options.get("parts", 0.5) / 2
        assert stats["bytes"] > 0
        assert stats["seconds/compute"] == STEPS * (rank + 1)
        for other in range(WORKERS):
            assert stats[f"rank{other}/compute"] == STEPS * (other + 1)
            assert stats[f"rank{other}/waiting"] == STEPS * (WORKERS - other - 1)


def late(rank: int) -> dict[str, float]:
    return told(rank, {"delay": 1})


def test_averages_that_arrive_later(ranks: Ranks) -> None:
    for rank, stats in enumerate(ranks(late)):
        assert stats["seconds/compute"] == STEPS * (rank + 1)
        assert 0 <= stats["seconds/waiting"] + stats["seconds/exchange"] < 1e-9


@pytest.mark.filterwarnings("ignore:torch.distributed is not set up")
def test_sinks_take_them(tmp_path: Path) -> None:
    averager = partavg.attach(nn.Linear(3, 2), interval=2)
    averager.step()
    row = {"step": averager.steps, **averager.stats()}
    averager.detach()
    assert numbers(row).keys() == row.keys() - {"step"}
    board = TensorBoard()
    board.begin(RunInfo("stats", 1, folder=tmp_path))
    board.take(row)
    board.end(None)
    assert list((tmp_path / "tensorboard").iterdir())
