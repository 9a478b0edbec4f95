"""Who is lost, found out by those left. Real processes are killed in test_torchrun.py."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
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
    rolls: list[RollCall], store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losing, "monotonic", Clock(store, rank1="working", rank2="working"))
    rolls[0].close()
    rolls[0].note("metric 'odd' failed at step 7")
    assert str(ask(rolls[3])).endswith("was lost at step 7: metric 'odd' failed at step 7")


def test_a_process_that_does_not_answer_is_lost(
    rolls: list[RollCall], store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine, or stopped."""
    monkeypatch.setattr(losing, "monotonic", Clock(store, rank1="working", rank3="waiting"))
    for rank in (0, 2):
        rolls[rank].close()
    lost = ask(rolls[3])
    assert lost.ranks == (0, 2)
    assert " and rank 2 (" in str(lost)
    assert str(lost).endswith(" were lost at step 7")


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
