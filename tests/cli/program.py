"""The program as a person starts it, with a recipe that takes a second."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tests.limits import seconds
from tests.processes import Command

RECIPE = """
[split]
name = "dirichlet"
alpha = 0.5
[model]
hidden = [8]
[training]
workers = 4
batch = 4
steps = 12
lr = 0.05
[averaging]
interval = 4
[metrics]
evaluate_every = 6
[checkpoints]
every = 5
[engine]
name = "vmapped"
"""

COMMAND = [sys.executable, "-m", "partavg"]


class Done(NamedTuple):
    """What a command wrote."""

    stdout: str
    stderr: str


def partavg(*arguments: object, cwd: Path, code: int = 0) -> Done:
    """Run a command to its end; no traceback, whatever happens."""
    command = Command(arguments, cwd)
    done = Done(*command.communicate())
    assert command.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def files(folder: Path) -> dict[str, bytes]:
    """What two runs with one seed must have in common, to the bit."""
    names = [p for p in folder.rglob("*") if p.suffix in (".jsonl", ".toml")]
    checkpoint = max(folder.rglob("step-*.pt"))
    workers = torch.load(checkpoint, weights_only=True)["workers"]
    return {
        **{str(p.relative_to(folder)): p.read_bytes() for p in names},
        "params": workers["params"].numpy().tobytes(),
        "memory": b"".join(v.numpy().tobytes() for v in workers["memory"].values()),
    }


def wait_for_rows(metrics: Path, count: int, process: Command) -> None:
    """Until so many steps are in the metrics of a process that halts, or it were done first."""
    deadline = time.monotonic() + seconds()
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


LONG = ("--set", "training.steps=80", "--set", "checkpoints.every=7")
