"""Who is lost, found out by those left. Real processes are killed in test_torchrun.py."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.limits import seconds
from torch.distributed import HashStore

from partavg.backends import rank_failure as losing
from partavg.backends.rank_failure import RankLost, RollCall


@pytest.fixture
def store() -> HashStore:
    return HashStore()


@pytest.fixture
def rolls(store: HashStore) -> Iterator[list[RollCall]]:
    """Four ranks, here threads of one process."""
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda rank: RollCall(store, rank, 4, patience=seconds()), range(4)))
    yield made
    for roll in made:
        roll.close()


class Clock(threading.local):
    """Time stands still until ranks have answered; then every look finds patience at its end."""

    def __init__(self, store: HashStore, **answers: str) -> None:
        self._store, self._answers, self._now = store, answers, 0.0

    def __call__(self) -> float:
        keys = {f"answer/{rank.removeprefix('rank')}": said for rank, said in self._answers.items()}
        if all(self._store.check([key]) and self._said(key) == said for key, said in keys.items()):
            self._now += seconds()
        return self._now

    def _said(self, key: str) -> str:
        return str(self._store.get(key).decode())


def ask(roll: RollCall) -> RankLost:
    """Let a collective of a rank fail."""
    with pytest.raises(RankLost) as caught, roll.naming_lost("at step 7"):
        raise RuntimeError("Connection closed by peer\nand much more")
    return caught.value


def test_a_process_that_ended_is_named_at_once(rolls: list[RollCall]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    rolls[2].close()
    for roll in rolls:
        roll.facts[2]["pid"] = str(ended.pid)
    lost = ask(rolls[0])
    assert str(lost) == f"rank 2 ({rolls[0].facts[2]['host']}, pid {ended.pid}) was lost at step 7"
    assert lost.ranks == (2,)
    assert lost.speaks
    assert not ask(rolls[3]).speaks, "one is enough"


def test_a_process_that_said_why_it_leaves_is_quoted(
    rolls: list[RollCall],
) -> None:
    rolls[0].close()
    rolls[0].note("metric 'odd' failed", "after step 6")
    lost = ask(rolls[3])
    assert str(lost) == f"{rolls[0].name(0)} left after step 6: metric 'odd' failed"
    assert lost.ranks == (0,)


def test_a_process_that_does_not_answer_is_silent(
    rolls: list[RollCall], store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine, or stopped."""
    monkeypatch.setattr(losing, "monotonic", Clock(store, rank1="working", rank3="waiting"))
    for rank in (0, 2):
        rolls[rank].close()
    lost = ask(rolls[3])
    assert lost.ranks == (0, 2)
    assert " and rank 2 (" in str(lost)
    assert re.search(r" were silent for [0-9]+ s at step 7: running still$", str(lost))


def test_whether_a_process_of_another_machine_died_is_not_known(
    rolls: list[RollCall], store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = dict.fromkeys(("rank0", "rank1"), "working")
    monkeypatch.setattr(losing, "monotonic", Clock(store, **others, rank3="waiting"))
    rolls[2].close()
    rolls[3].facts[2].update(host="elsewhere", pid="1")
    said = "was silent for [0-9]+ s at step 7: whether it died is not known here"
    assert re.search(said, str(ask(rolls[3])))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("The size of tensor a (768) must match the size of tensor b (512)"),
        NotImplementedError("Connection of layers"),
        ValueError("no connection"),
    ],
)
def test_other_errors_keep_their_kind(rolls: list[RollCall], error: Exception) -> None:
    with pytest.raises(type(error)) as caught, rolls[1].naming_lost("at step 7"):
        raise error
    assert caught.value is error


def test_the_one_that_works_while_all_others_wait_is_late(
    rolls: list[RollCall], store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 cannot ask, because its own collective has not failed yet: its thread answers."""
    over = threading.Event()
    answers = {"rank0": "waiting", "rank1": "waiting", "rank2": "waiting", "rank3": "working"}
    monkeypatch.setattr(losing, "monotonic", Clock(store, **answers))

    def wait() -> None:
        with rolls[1].naming_lost("at step 7"):
            over.wait()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(wait)
        other = pool.submit(ask, rolls[2])
        lost = ask(rolls[0])
        over.set()
    assert lost.ranks == other.result().ranks == (3,)
    assert str(lost).startswith("rank 3 (")
    assert str(lost).endswith(") did not answer in time at step 7")


def test_a_failure_of_nobody(rolls: list[RollCall]) -> None:
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(ask, roll) for roll in rolls[1:]]
        lost = ask(rolls[0])
    assert str(lost) == "a connection between ranks broke at step 7: Connection closed by peer"
    assert [lost.speaks, *(other.result().speaks for other in others)] == [True] + [False] * 3


def test_facts_are_known_to_all(rolls: list[RollCall]) -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda r: RollCall(store, r, 2, facts={"torch": str(r)}), range(2)))
    for roll in made:
        assert [facts["torch"] for facts in roll.facts] == ["0", "1"]
        roll.close()


def test_a_rank_that_waits_is_woken_where_connections_do_not_break(rolls: list[RollCall]) -> None:
    """As with NCCL, whose collectives go on waiting for a rank that is gone."""
    over = threading.Event()
    for roll in rolls:
        roll.wake = over.set
    rolls[1].note("ValueError: odd", "after step 4")
    rolls[1].leave()
    with pytest.raises(RankLost) as caught, rolls[2].naming_lost("after step 5"):
        assert over.wait(seconds())
    assert str(caught.value) == f"{rolls[2].name(1)} left after step 4: ValueError: odd"
    with rolls[0].naming_lost("after step 5"):
        pass


def test_a_rank_that_stops_by_agreement_wakes_nobody(
    rolls: list[RollCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    glances = threading.Semaphore(0)
    monkeypatch.setattr(RollCall, "_wake_up", _counting(RollCall._wake_up, glances))
    rolls[2].wake = lambda: pytest.fail("nobody left")
    with rolls[2].naming_lost("after step 5"):
        rolls[1].note("parameter 'x' was added", "after step 4")
        for _ in range(8):
            assert glances.acquire(timeout=seconds())


def _counting(own: Callable[..., None], glances: threading.Semaphore) -> Callable[..., None]:
    def counted(self: RollCall) -> None:
        own(self)
        glances.release()

    return counted
