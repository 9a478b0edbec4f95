"""Ranks that differ, err, dawdle or die: all others stop with a sentence that names them."""

import os
import signal
import warnings
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.backends.distributed.loops import LR, model, samples
from tests.outside import Noisy, median
from tests.ranks import Ranks, started
from torch import Tensor
from torch.nn import functional as F

import partavg
from partavg.backends.distributed import trailer


def train(
    rank: int, steps: int = 6, *, before: Any = None, lr: float = LR, **options: Any
) -> dict[str, Tensor]:
    """A user's loop, into which `before` each step something may happen."""
    net = model(rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    inputs, targets = samples()
    averager = partavg.attach(net, optimizer, **{"interval": 4, **options})
    try:
        for step in range(1, steps + 1):
            if before:
                before(rank, step, net, averager)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rank::3]), targets[rank::3]).backward()
            optimizer.step()
        averager.consensus()
    except Exception as error:
        state = "finite" if all(p.isfinite().all() for p in net.parameters()) else "not finite"
        raise type(error)(f"{error} [{state}]") from error
    finally:
        averager.detach()
    return net.state_dict()


def sentences(ranks: Ranks, function: Any) -> list[str]:
    """What every rank stopped with, in one line."""
    answers = ranks.answers(function)
    assert not any(done for done, _ in answers), answers
    return [text.splitlines()[0] for _, text in answers]


def other_interval(rank: int) -> None:
    train(rank, interval=8 if rank == 1 else 4)


def other_model(rank: int) -> None:
    net = torch.nn.Linear(4 + (rank == 2), 3)
    partavg.attach(net, interval=2)


def other_torch(rank: int) -> None:
    version = torch.__version__
    try:
        torch.__version__ = "9.9" if rank == 1 else "2.0"  # type: ignore[assignment]
        train(rank)
    finally:
        torch.__version__ = version


def other_seed(rank: int) -> None:
    train(rank, aggregate=Noisy(), buffers="local", seed=int(rank == 1))


def bad_weight(rank: int) -> None:
    train(rank, weight=-1.0 if rank == 2 else 1.0)


def scaled_sum(messages: Tensor, weights: Tensor, about: partavg.About, by: float) -> Tensor:
    return by * (weights @ messages)


def other_aggregate(rank: int) -> None:
    train(rank, aggregate=partial(scaled_sum, by=1.0 + rank % 2))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (other_aggregate, "rank 1 has aggregate scaled_sum with () and {'by': 2.0}, rank 0 has"),
        (other_interval, "rank 1 has interval 8, rank 0 has 4: start all ranks with the same"),
        (other_torch, "rank 1 has torch 9.9, rank 0 has 2.0: start all ranks with the same"),
        (other_seed, "rank 1 has seed 1, rank 0 has 0: start all ranks with the same"),
        (other_model, "rank 2 has a model of 18 numbers"),
        (bad_weight, "rank 2 cannot start: weight -1.0 makes no sense: use a number above 0"),
    ],
)
def test_ranks_that_differ_do_not_start(ranks: Ranks, function: Any, expected: str) -> None:
    found = sentences(ranks, function)
    assert all(text.startswith(f"ValueError: {expected}") for text in found), found


def not_finite(rank: int) -> None:
    def poison(rank: int, step: int, net: torch.nn.Module, _: object) -> None:
        if rank == 2 and step == 3:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter[0] = torch.nan

    train(rank, before=poison)


def test_a_rank_with_nan_is_named_and_touches_nobody(ranks: Ranks) -> None:
    found = sentences(ranks, not_finite)
    start = "NotFinite: rank 2 sent a number that is not finite after step 3"
    assert all(text.startswith(start) for text in found), found
    assert [text.endswith("[finite]") for text in found] == [True, True, False]


def not_finite_late(rank: int, options: dict[str, Any]) -> tuple[str, bool, bool]:
    """As on a GPU, where trouble is read with the next message; weights are not equal."""
    net = model(rank)

    def poison(rank: int, step: int, module: torch.nn.Module, _: object) -> None:
        nonlocal net
        net = module
        if rank == 2 and step == 3:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter[0] = torch.nan

    taken = []
    without = trailer.Trailer.without_faulty_

    def noting(self: Any, total: Tensor, entries: Tensor) -> None:
        without(self, total, entries)
        taken.append(bool(total.isfinite().all()))

    late = patch.object(trailer, "reads_late", lambda message: True)
    with late, patch.object(trailer.Trailer, "without_faulty_", noting):
        try:
            train(rank, before=poison, weight=1.0 + rank, **options)
        except trailer.NotFinite as error:
            finite = all(bool(p.isfinite().all()) for p in net.parameters())
            return str(error), finite, all(taken)
    return "", False, False


@pytest.mark.parametrize("options", [{}, {"aggregate": median}], ids=["sum", "gather"])
def test_nobody_takes_nan_where_it_is_read_late(ranks: Ranks, options: dict[str, Any]) -> None:
    for rank, (said, finite, taken) in enumerate(ranks(not_finite_late, options)):
        assert said.startswith("rank 2 sent a number that is not finite after step 3: the other")
        assert finite == (rank != 2)
        assert taken


def late_mean(rank: int) -> Tensor:
    """What is taken instead: the mean of the others, by their weights."""
    net = torch.nn.Linear(2, 2)
    with patch.object(trailer, "reads_late", lambda message: True):
        averager = partavg.attach(net, interval=1, weight=1.0 + rank)
        with torch.no_grad():
            net.weight.fill_(torch.nan if rank == 1 else 1.0 + rank)
        averager.step()
        averager.detach()
    return net.weight.detach()


def test_the_others_take_their_own_mean_then(ranks: Ranks) -> None:
    mean = (1 * 1.0 + 3 * 3.0) / 4
    for found in ranks(late_mean):
        torch.testing.assert_close(found, torch.full((2, 2), mean))


def short(rank: int, wire: str) -> None:
    train(rank, steps=5 if rank == 1 else 9, wire=wire)


def full_short(rank: int) -> None:
    short(rank, "full")


def int8_short(rank: int) -> None:
    short(rank, "int8")


def early(rank: int) -> None:
    def ask(rank: int, step: int, _: object, averager: Any) -> None:
        if rank == 0 and step == 3:
            averager.consensus()

    train(rank, before=ask)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (full_short, "rank 0 averages after step 6, rank 1 asks for the consensus after step 5"),
        (int8_short, "rank 0 averages after step 6, rank 1 asks for the consensus after step 5"),
        (early, "rank 0 asks for the consensus after step 2, rank 1 averages after step 3"),
    ],
)
def test_ranks_that_go_apart_stop(ranks: Ranks, function: Any, expected: str) -> None:
    found = sentences(ranks, function)
    assert all(text.startswith(f"ValueError: {expected}: all ranks must") for text in found), found


def slow(rank: int) -> list[str]:
    now = 0.0

    def work(rank: int, *_: object) -> None:
        nonlocal now
        now += 0.05 if rank == 1 else 0.01

    clock = patch.object(trailer, "perf_counter", lambda: now)
    with clock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(rank, 32, before=work)
    return [str(warning.message) for warning in caught]


def test_a_slow_rank_is_named_once(ranks: Ranks) -> None:
    first, *others = ranks(slow)
    assert first == ["rank 1 takes 50 ms a step, the others 10 ms: all wait for it"]
    assert others == [[], []]


def killed(rank: int) -> None:
    def die(rank: int, step: int, *_: object) -> None:
        if rank == 1 and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    train(rank, before=die)


def test_a_rank_that_dies_is_named() -> None:
    with started(3) as ranks:
        answers = ranks.answers(killed)
        pid = ranks.processes[1].pid
    assert answers[1] == (False, "gone")
    for rank in (0, 2):
        assert f"pid {pid}) was lost after step 4" in answers[rank][1]
