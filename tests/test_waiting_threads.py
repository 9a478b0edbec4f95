"""How torch's threads wait: what is said to OpenMP, seen from processes that begin afresh."""

import os
import subprocess
import sys

import pytest

TRAINED = """
def trained():  # whether threads were put to sleep for it
    x, y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)
    split = partavg.iid(y, workers=2, seed=0)
    schedule = partavg.Schedule.partial(2)
    net, loss = torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy
    before = sleeping()
    told = {"schedule": schedule, "lr": 0.1, "engine": "looped"}
    simulation = partavg.Simulation(net, loss, (x, y), split, **told)
    list(simulation.train(1))
    return sleeping() - before

def sleeping():
    return sum("keeps threads asleep" in thread.name for thread in threading.enumerate())
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


def test_importing_partavg_first_is_enough() -> None:
    program = f"import partavg, threading, torch\n{TRAINED}\nprint(trained())"
    assert outcome(program) == ("0", "1000")


def test_the_command_line_says_it_too() -> None:
    assert outcome("import partavg.cli, torch") == ("", "1000")


@pytest.mark.parametrize(("threads", "kept"), [("2", "1"), ("1", "0")])
def test_a_torch_that_came_first_learns_it_from_a_simulation(threads: str, kept: str) -> None:
    program = f"import torch, partavg, threading\n{TRAINED}\nprint(trained())"
    found, spins = outcome(program, OMP_NUM_THREADS=threads)
    assert found == kept
    assert int(spins) > 1000


@pytest.mark.parametrize("first", ["partavg, torch", "torch, partavg"])
@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_users_say_holds(first: str, name: str) -> None:
    value, spins = {"GOMP_SPINCOUNT": ("5", "5"), "OMP_WAIT_POLICY": ("passive", "0")}[name]
    program = f"import {first}, threading\n{TRAINED}\nprint(trained())"
    assert outcome(program, **{name: value}) == ("0", spins)
