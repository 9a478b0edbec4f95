"""Ranks that leave, fall silent or fail: the others hear why, and nothing stays open."""

import os
import re
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, copy, model, samples
from tests.outside import median
from tests.ranks import Ranks, started
from torch import Tensor
from torch.nn import functional as F

import partavg

Happens = Callable[[int, int], None]


def train(rank: int, happens: Happens, steps: int = 6, **options: Any) -> dict[str, Tensor]:
    """A user's loop in a with-block, into which something may happen before each step."""
    net, (inputs, targets) = model(rank), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    with partavg.attach(net, optimizer, **{"interval": 4, **options}):
        for step in range(1, steps + 1):
            happens(rank, step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rank::3]), targets[rank::3]).backward()
            optimizer.step()
    return copy(net)


def fail(rank: int, step: int) -> None:
    if rank == 1 and step == 5:
        raise KeyError("no such batch\nas this")


def interrupt(rank: int, step: int) -> None:
    if rank == 0 and step == 1:
        raise KeyboardInterrupt


def leaving(rank: int, happens: Happens, options: dict[str, Any]) -> tuple[str, float, int]:
    """What a rank hears; then all go on with the user's own group, as if nothing had been."""
    said = ""
    try:
        train(rank, happens, **options)
    except (Exception, KeyboardInterrupt) as error:
        said = f"{type(error).__name__}: {error}"
    together = torch.ones(2)
    dist.all_reduce(together)
    again = train(rank, lambda rank, step: None, 2)
    return said, float(together[0]), len(again)


@pytest.mark.parametrize(
    "options",
    [{}, {"wire": "int8"}, {"delay": 2}, {"aggregate": median}, {"interval": 6, "parts": 1}],
    ids=["plain", "int8", "delay", "aggregate", "periodic"],
)
def test_a_rank_that_fails_tells_the_others_why(ranks: Ranks, options: dict[str, Any]) -> None:
    found = ranks(leaving, fail, options)
    assert found[1][0].startswith("KeyError: ")
    for rank in (0, 2):
        said, pid = found[rank][0], ranks.processes[1].pid
        assert said.startswith("RankLost: rank 1 ("), said
        assert said.endswith(f", pid {pid}) left after step 4: KeyError: 'no such batch\\nas this'")
    assert [together for _, together, _ in found] == [3.0] * 3


def test_a_rank_that_is_interrupted_before_the_first_step(ranks: Ranks) -> None:
    found = ranks(leaving, interrupt, {})
    assert found[0][0] == "KeyboardInterrupt: "
    assert all(said.endswith("left after step 0: KeyboardInterrupt") for said, _, _ in found[1:])


def detached(rank: int) -> str:
    """One rank stops in an orderly way, and the others do not."""
    net = model(rank)
    averager = partavg.attach(net, interval=2)
    averager.step()
    try:
        if rank != 2:
            averager.step()
    except RuntimeError as error:
        return str(error)
    finally:
        averager.detach()
    return ""


def test_a_rank_that_detaches_alone_has_left(ranks: Ranks) -> None:
    found = ranks(detached)
    assert all(said.endswith(") left after step 1") for said in found[:2]), found


def broken_aggregate(messages: Tensor, weights: Tensor, about: Any) -> Tensor:
    raise RuntimeError("my own mistake")


def out_of_memory(messages: Tensor, weights: Tensor, about: Any) -> Tensor:
    raise torch.OutOfMemoryError("Tried to allocate 2 GiB")


def aggregated(rank: int, aggregate: Any) -> None:
    train(rank, lambda rank, step: None, aggregate=aggregate)


@pytest.mark.parametrize(
    ("aggregate", "sentence"),
    [
        (broken_aggregate, "RuntimeError: my own mistake"),
        (out_of_memory, "OutOfMemoryError: Tried to allocate 2 GiB"),
    ],
)
def test_errors_keep_their_kind(ranks: Ranks, aggregate: Any, sentence: str) -> None:
    for done, text in ranks.answers(aggregated, aggregate):
        assert not done
        assert text.startswith(sentence)


def one_runs_out(rank: int) -> None:
    def happens(rank: int, step: int) -> None:
        if rank == 2 and step == 3:
            raise torch.OutOfMemoryError("Tried to allocate 2 GiB")

    train(rank, happens)


def test_one_that_runs_out_of_memory_says_so(ranks: Ranks) -> None:
    found = [text.splitlines()[0] for _, text in ranks.answers(one_runs_out)]
    assert found[2] == "OutOfMemoryError: Tried to allocate 2 GiB"
    told = ") left after step 2: OutOfMemoryError: Tried to allocate 2 GiB"
    assert all(text.startswith("RankLost: rank 2") and text.endswith(told) for text in found[:2])


class Unprepared(partavg.Outer):
    """Has no room for its memory on one rank."""

    def init(self, params: Tensor, layout: Any) -> Any:
        if dist.get_rank() == 1 and params.numel() > 100:
            raise torch.OutOfMemoryError("Tried to allocate 2 GiB")
        return super().init(params, layout)


def unprepared(rank: int) -> None:
    train(rank, lambda rank, step: None, solver=Unprepared())


def test_one_that_fails_while_it_attaches_tells_the_others(ranks: Ranks) -> None:
    found = [text.splitlines()[0] for _, text in ranks.answers(unprepared)]
    assert found[1] == "OutOfMemoryError: Tried to allocate 2 GiB"
    told = ") left before its first step: OutOfMemoryError: Tried to allocate 2 GiB"
    for text in (found[0], found[2]):
        assert text.startswith("RankLost: rank 1"), text
        assert text.endswith(told), text


def stopped(rank: int) -> None:
    """A rank that is stopped, while the others do not wait for long."""
    net = model(rank)
    averager = partavg.attach(net, interval=4)
    averager.step()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    for group in averager._connections.groups:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    averager.step()


@pytest.mark.slow
def test_a_stopped_rank_is_silent_and_nobody_says_it_died() -> None:
    with started(3) as ranks:
        for pipe in ranks._pipes:
            pipe.send((stopped, ()))
        found = [ranks._answer(ranks._pipes[rank]) for rank in (0, 2)]
        pid = ranks.processes[1].pid
    for done, text in found:
        assert not done
        sentence = text.splitlines()[0]
        assert f"pid {pid})" in sentence
        assert re.search(r" silent for [0-9]+ s after step 2: running still$", sentence), text


def opened() -> tuple[int, int, int, int]:
    """What this process has open: files, threads, Python's threads, groups."""
    files, tasks = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
    groups = dist.distributed_c10d._world.pg_map
    return files, tasks, threading.active_count(), len(groups)


def ten_times(rank: int, options: dict[str, Any]) -> tuple[Any, Any]:
    train(rank, lambda rank, step: None, **options)  # what torch opens once
    before = opened()
    for _ in range(10):
        train(rank, lambda rank, step: None, **options)
    return before, opened()


@pytest.mark.parametrize(
    "options", [{}, {"wire": "int8"}, {"delay": 2}, {"wire": "bf16", "delay": 1}]
)
def test_ten_attaches_leave_nothing_open(ranks: Ranks, options: dict[str, Any]) -> None:
    for before, after in ranks(ten_times, options):
        assert after == before


def afterwards(rank: int) -> list[str]:
    net = model(rank)
    averager = partavg.attach(net, interval=2)
    averager.step()
    averager.detach()
    averager.detach()
    said, state = [], averager.state_dict()
    for call in (averager.step, averager.consensus, lambda: averager.load_state_dict(state)):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    assert averager.steps == 1
    return said


def test_after_detach_there_is_a_sentence(ranks: Ranks) -> None:
    for said in ranks(afterwards):
        assert said == ["the averager was detached: call attach again to average"] * 3
