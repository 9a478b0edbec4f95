"""Many processes from the command line: started by torchrun, killed, stopped, started again."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli.test_cli import COMMAND, RECIPE, files, partavg

from partavg.cli.tempo import Tempo

LIMIT = 100  # seconds
STEPS = ["--set", "training.steps=300", "--set", "training.workers=5"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@contextmanager
def started(command: Sequence[object], cwd: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A process in a session of its own, all of which ends with the test."""
    process = subprocess.Popen(
        [str(word) for word in command], cwd=cwd, env={**os.environ, **environment},
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
    metrics, until = folder / "metrics.jsonl", time.monotonic() + LIMIT

    def lines() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    before = lines()
    while lines() < before + steps:
        assert time.monotonic() < until, "no progress"
        time.sleep(0.02)


def whole(recipe: Path, folder: Path) -> dict[str, bytes]:
    """Three ranks that nothing happens to."""
    command = [*torchrun(3), "-m", "partavg", "run", recipe, *STEPS, "--out", folder]
    with started(command, folder.parent) as process:
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert "3 ranks, workers on each: 1–2" in out
    assert out.count("run folder:") == 1, "one rank speaks"
    return files(folder)


def test_killed_ranks_cost_nothing_but_time(recipe: Path, tmp_path: Path) -> None:
    """Killed, started again by hand, killed again and started again by torchrun."""
    folder = tmp_path / "runs" / "recipe-1"
    words = ["run", recipe, *STEPS]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    with (
        started([*COMMAND, *words], tmp_path, RANK="0", **job) as first,
        started([*COMMAND, *words], tmp_path, RANK="1", **job) as second,
        started([*COMMAND, *words], tmp_path, RANK="2", **job) as third,
    ):
        wait_for(folder, 12)
        second.kill()
        err = first.communicate(timeout=LIMIT)[1]
        assert (first.returncode, third.wait(LIMIT)) == (4, 4)
        assert third.communicate()[1] == ""
    name = rf"rank 1 \({re.escape(socket.gethostname())}, pid {second.pid}\)"
    again = "torchrun --nproc-per-node 3 -m partavg run runs/recipe-1/config.toml"
    assert re.fullmatch(
        rf"partavg: {name} was lost after step \d+; continue with: {again} "
        rf"--out runs/recipe-1 --resume\n", err
    ), err  # fmt: skip

    launch = torchrun(3, "--max-restarts", "1")
    words += ["--out", folder, "--resume"]
    with started([*launch, "-m", "partavg", *words], tmp_path) as process:
        wait_for(folder, 12)
        victim = next(pid for pid, rank in children(process.pid).items() if rank == "2")
        os.kill(victim, signal.SIGKILL)
        err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 0, err
    assert f"pid {victim}) was lost after step" in err
    assert files(folder) == whole(recipe, tmp_path / "whole")


def test_a_restart_goes_on_where_no_folder_was_named(recipe: Path, tmp_path: Path) -> None:
    """And a signal to stop saves once; another number of ranks, here one, can go on."""
    folder = tmp_path / "runs" / "recipe-1"
    launch = torchrun(2, "--max-restarts", "1")
    with started([*launch, "-m", "partavg", "run", recipe, *STEPS], tmp_path) as process:
        wait_for(folder, 12)
        os.kill(next(iter(children(process.pid))), signal.SIGKILL)
        wait_for(folder, 30)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=LIMIT)[1]
    assert [path.name for path in folder.parent.iterdir()] == ["recipe-1"]
    assert err.count("partavg: stopped and saved; continue with: torchrun --nproc-per-node 2") == 1
    steps = max(folder.glob("checkpoints/step-*")).name[5:14]
    assert int(steps) == (folder / "metrics.jsonl").read_bytes().count(b"\n")
    partavg("run", recipe, *STEPS, "--out", folder, "--resume", cwd=tmp_path)
    assert (folder / "metrics.jsonl").read_bytes().count(b"\n") == 300


def test_bad_input_ends_all_ranks_with_one_sentence(recipe: Path, tmp_path: Path) -> None:
    run = f'exec {sys.executable} -m partavg run {recipe} "$0=$RANK"'
    cases = {
        "averaging.intervall": "unknown key 'averaging.intervall'",
        "training.seed": "rank 1 has training.seed = 1, rank 0 has 0: start all ranks with",
        "training.workers": "training.workers = 0",
    }
    for key, sentence in cases.items():
        command = [*torchrun(2), "--no-python", "bash", "-c", run, f"--set={key}"]
        with started(command, tmp_path) as process:
            err = process.communicate(timeout=LIMIT)[1]
        assert process.returncode == 1
        said = [line for line in err.splitlines() if line.startswith("partavg: ")]
        assert len(said) == 1
        assert sentence in said[0]
        assert re.search(r"exitcode *: 2 ", err)
        assert not (tmp_path / "runs").exists()


def test_a_slow_rank_is_named_once() -> None:
    tempo = Tempo()
    said = [tempo.take([0.01, 0.012, 0.011 if step < 40 else 0.05]) for step in range(100)]
    assert [text for text in said if text] == [
        "rank 2 takes 50 ms a step, the others 11 ms: all wait for it"
    ]
    assert tempo.range == "ranks 10–50 ms"
    pauses = Tempo()
    assert not any(pauses.take([0.01, 0.01, 9.0 if step % 3 else 0.01][:2]) for step in range(90))
    assert Tempo().take([0.01]) == ""
