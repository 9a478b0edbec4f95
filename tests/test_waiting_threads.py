"""How torch's threads wait: what is said to OpenMP, and when threads are let sleep."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from partavg import waiting_threads
from partavg.waiting_threads import SPINS, look

TRAINED = """
def trained():
    x, y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)
    split = partavg.iid(y, workers=2, seed=0)
    net, loss = torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy
    told = {"schedule": partavg.Schedule.partial(2), "lr": 0.1, "engine": "looped"}
    simulation = partavg.Simulation(net, loss, (x, y), split, **told)
    list(simulation.train(20))
    return any(thread.name == waiting_threads.NAME for thread in threading.enumerate())

from partavg import waiting_threads
clock, queued = 0.0, 0.0
def now():
    global clock, queued
    clock, queued = clock + 0.2, queued + 0.1
    return clock
waiting_threads.monotonic, waiting_threads._queued = now, lambda: queued
print(trained())
"""


def outcome(program: str, **environment: str) -> tuple[str, str]:
    """What a new Python prints, and how long its OpenMP says that threads spin."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP", "GOMP"))}
    given = {"OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "2", **environment}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=kept | given, capture_output=True, text=True, check=True)
    said = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not said:
        pytest.skip("this torch has another OpenMP")
    return done.stdout.strip(), said[0].split("'")[1]


def test_the_command_line_says_it_too() -> None:
    assert outcome("import partavg.cli, torch") == ("", SPINS)


@pytest.mark.parametrize(("first", "spins"), [("partavg, torch", SPINS), ("torch, partavg", None)])
def test_training_that_waits_for_processors_lets_threads_sleep(
    first: str, spins: str | None
) -> None:
    found, said = outcome(f"import {first}, threading\n{TRAINED}")
    assert found == "True"
    assert said == (spins or said)


def test_a_single_thread_waits_for_nobody() -> None:
    found, _ = outcome(f"import partavg, threading, torch\n{TRAINED}", OMP_NUM_THREADS="1")
    assert found == "False"


@pytest.mark.parametrize("first", ["partavg, torch", "torch, partavg"])
@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_users_say_holds(first: str, name: str) -> None:
    value, spins = {"GOMP_SPINCOUNT": ("5", "5"), "OMP_WAIT_POLICY": ("passive", "0")}[name]
    program = f"import {first}, threading\n{TRAINED}"
    assert outcome(program, **{name: value}) == ("False", spins)


def test_a_process_that_is_begun_here_has_it_from_here() -> None:
    found, spins = outcome(f"import partavg, threading, torch\n{TRAINED}", GOMP_SPINCOUNT=SPINS)
    assert (found, spins) == ("True", SPINS)


def test_without_counts_threads_sleep_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_threads, "_CHOSEN", False)
    monkeypatch.setattr(waiting_threads, "_queued", lambda: None)
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    waiting_threads.wait_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"
    monkeypatch.setattr(waiting_threads, "_queued", lambda: 0.0)
    waiting_threads.wait_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == SPINS


class Machine:
    """A clock, and how long this thread waited for a processor."""

    def __init__(self) -> None:
        self.now = self.queued = 0.0

    def looks(self, seconds: float, share: float) -> bool:
        """Whether threads sleep after a time, of which a share was waited for processors."""
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            self.queued += 0.05 * share
            look()
        return any(thread.name == waiting_threads.NAME for thread in threading.enumerate())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if not waiting_threads._openmps():
        pytest.skip("this torch has another OpenMP")
    made = Machine()
    monkeypatch.setattr(waiting_threads, "_CHOSEN", False)
    monkeypatch.setattr(waiting_threads, "_threads", lambda: 2)
    monkeypatch.setattr(waiting_threads, "monotonic", lambda: made.now)
    monkeypatch.setattr(waiting_threads, "_queued", lambda: made.queued)
    waiting_threads._forget()
    yield made
    made.looks(3, 0.0)
    waiting_threads._forget()


def test_threads_sleep_while_processors_are_shared(machine: Machine) -> None:
    assert not machine.looks(2, 0.02)
    assert machine.looks(0.3, 0.2)
    assert machine.looks(0.4, 0.0)  # other work may pause
    assert machine.looks(2, 0.2)
    assert not machine.looks(0.8, 0.0)
    assert machine.looks(0.3, 0.2)
    assert torch.ones(10).sum() == 10


def test_what_was_before_training_counts_for_nothing(machine: Machine) -> None:
    assert not machine.looks(0.2, 0.0)
    machine.now, machine.queued = machine.now + 2, machine.queued + 2
    assert not machine.looks(1, 0.0)


def test_another_thread_that_waits_keeps_threads_asleep(machine: Machine) -> None:
    assert machine.looks(0.3, 0.2)
    other = threading.Thread(target=machine.looks, args=(5, 0.2))
    other.start()
    other.join()
    assert machine.looks(0.3, 0.0)


def test_the_kernel_counts_what_a_thread_waits() -> None:
    found = waiting_threads._queued()
    assert found is None or found >= 0
