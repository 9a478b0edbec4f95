"""Many processes from the command line: started by torchrun, killed, stopped, started again."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli.program import RECIPE, files, partavg
from tests.limits import seconds
from tests.processes import Command

from partavg.backends.stragglers import Stragglers

ROOT = Path(__file__).parents[2]
STEPS = ["--set", "training.steps=100", "--set", "training.workers=5"]
HALTS = 30


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@contextmanager
def started(command: Sequence[object], cwd: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A process in a session of its own, all of which ends with the test."""
    patience = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(seconds()))}
    process = subprocess.Popen(
        [str(word) for word in command], cwd=cwd, env={**os.environ, **patience, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for pid in [*children(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def torchrun(ranks: int, *options: str) -> list[str]:
    here = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *here,
        "--nproc-per-node",
        str(ranks),
    ]
    return [*launcher, *options]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def children(pid: int) -> dict[int, str]:
    """Processes that a process started, with the rank each has."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            environment = path.joinpath("environ").read_text()
        except OSError:
            continue
        if int(parent) == pid:
            rank = re.search(r"(?:^|\0)RANK=(\d+)", environment)
            found[int(path.name)] = rank[1] if rank else ""
    return found


def wait_for(folder: Path, steps: int) -> None:
    """Until so many steps more are in the metrics of a run."""
    metrics, until = folder / "metrics.jsonl", time.monotonic() + seconds()

    def lines() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    before = lines()
    while lines() < before + steps:
        assert time.monotonic() < until, "no progress"
        time.sleep(0.02)


@contextmanager
def by_hand(words: Sequence[object], cwd: Path, *, halts: int = 0) -> Iterator[list[Command]]:
    """Two ranks without torchrun, which only sets the environment: its own start takes time.

    If they halt, the second does and the first waits for it.
    """
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [Command(words, cwd, halts=halts * rank, RANK=str(rank), **job) for rank in range(2)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()


def finished(words: Sequence[object], cwd: Path) -> str:
    """What two ranks say that train to the end."""
    with by_hand(words, cwd) as ranks:
        said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[1] == ("", ""), "one rank speaks"
    return said[0][0]


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
def test_whatever_happens_costs_nothing_but_time(recipe: Path, tmp_path: Path) -> None:
    """Killed and started again by torchrun, stopped, killed again: the end is the same."""
    folder = tmp_path / "runs" / "recipe-1"
    words = ["run", recipe, *STEPS]
    launch = torchrun(2, "--max-restarts", "1")
    program = [ROOT / "tests" / "halting.py", HALTS]
    with started([*launch, *program, *words], tmp_path) as process:
        wait_for(folder, 12)
        victim = next(pid for pid, rank in children(process.pid).items() if rank == "0")
        os.kill(victim, signal.SIGKILL)
        wait_for(folder, 12)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=seconds())[1]
    assert [path.name for path in folder.parent.iterdir()] == ["recipe-1"], "it went on in there"
    assert len(re.findall(rf"partavg: rank 0 \(.*, pid {victim}\) was lost after step", err)) == 1
    assert err.count("partavg: stopped and saved; continue with: torchrun --nproc-per-node 2") == 1
    saved = int(max(folder.glob("checkpoints/step-*")).name[5:14])
    assert saved == (folder / "metrics.jsonl").read_bytes().count(b"\n"), "after the same step"
    copy = shutil.copytree(folder, tmp_path / "copy")

    words += ["--out", folder, "--resume"]
    with by_hand(words, tmp_path, halts=HALTS) as (first, second):
        wait_for(folder, 12)
        second.send_signal(signal.SIGKILL)
        err = first.communicate()[1]
    assert first.returncode == 4
    assert re.fullmatch(
        rf"partavg: rank 1 \({re.escape(socket.gethostname())}, pid {second.pid}\) was lost after "
        rf"step \d+; continue with: torchrun --nproc-per-node 2 -m partavg run .* --resume\n", err
    ), err  # fmt: skip

    assert "run folder:" in finished(words, tmp_path)
    whole = finished(["run", recipe, *STEPS, "--out", "whole"], tmp_path)
    assert "2 ranks, workers on each: 2–3" in whole
    assert files(folder) == files(tmp_path / "whole")
    partavg("run", recipe, *STEPS, "--out", copy, "--resume", cwd=tmp_path)
    assert losses(copy) == pytest.approx(losses(folder), rel=1e-3), "in one process"


@pytest.mark.slow
def test_bad_input_ends_all_ranks_with_one_sentence(recipe: Path, tmp_path: Path) -> None:
    run = f'exec {sys.executable} -m partavg run {recipe} "--set=training.seed=$RANK"'
    with started([*torchrun(2), "--no-python", "bash", "-c", run], tmp_path) as process:
        err = process.communicate(timeout=seconds())[1]
    assert process.returncode == 1
    assert [line for line in err.splitlines() if line.startswith("partavg: ")] == [
        "partavg: rank 1 has training.seed = 1, rank 0 has 0: start all ranks with the same"
    ]
    assert re.search(r"exitcode *: 2 ", err)
    assert not (tmp_path / "runs").exists()


def test_a_slow_rank_is_named_once() -> None:
    stragglers = Stragglers()
    said = [stragglers.take([0.01, 0.012, 0.011 if step < 40 else 0.05]) for step in range(100)]
    assert [text for text in said if text] == [
        "rank 2 takes 50 ms a step, the others 11 ms: all wait for it"
    ]
    assert stragglers.range == "ranks 10–50 ms"
    pauses = Stragglers()
    assert not any(pauses.take([0.01, 0.01, 9.0 if step % 3 else 0.01][:2]) for step in range(90))
    assert Stragglers().take([0.01]) == ""


@pytest.mark.slow
def test_ranks_share_a_sweep(recipe: Path, tmp_path: Path) -> None:
    words = ("sweep", recipe, "--grid", "training.lr=0.02,0.05", "--schemes", "periodic,partial")
    partavg(*words, "--seeds", 1, "--jobs", 1, "--out", "one", cwd=tmp_path)
    with by_hand([*words, "--seeds", 1, "--out", "two"], tmp_path) as ranks:
        (said, wrong), (nothing, _) = (rank.communicate() for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], wrong
    assert "On the test set, with fresh seeds" in said
    assert not nothing
    one, two = ((tmp_path / out / "sweep.csv").read_text() for out in ("one", "two"))
    assert one == two
