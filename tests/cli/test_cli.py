"""The command line as a person uses it: real processes, real signals."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.program import COMMAND, LONG, RECIPE, files, partavg, wait_for_rows
from tests.limits import seconds
from tests.processes import Command


def test_version_and_help(tmp_path: Path) -> None:
    assert re.fullmatch(r"partavg \d+\.\d+\.\d+\n", partavg("--version", cwd=tmp_path).stdout)
    for command in ([], ["run"], ["compare"]):
        assert "Usage: partavg" in partavg(*command, "--help", cwd=tmp_path).stdout
    assert "Examples:" in partavg("compare", "-h", cwd=tmp_path).stdout


def test_run(recipe: Path, tmp_path: Path) -> None:
    done = partavg("run", recipe, "--set", "training.steps=6", cwd=tmp_path)
    assert "engine: vmapped (as configured)" in done.stdout
    assert "step 6/6, loss" in done.stdout
    assert "accuracy of u_K" in done.stdout
    assert "run folder: runs/recipe-1" in done.stdout
    assert "\x1b" not in done.stdout, "no escape codes in a pipe"
    assert json.loads((tmp_path / "runs/recipe-1/summary.json").read_text())["steps"] == 6
    assert "runs/recipe-2" in partavg("run", recipe, cwd=tmp_path).stdout


def test_a_finished_run_is_kept(recipe: Path, tmp_path: Path) -> None:
    partavg("run", recipe, "--out", "out", cwd=tmp_path)
    before = files(tmp_path / "out")
    refused = partavg("run", recipe, "--out", "out", cwd=tmp_path, code=2)
    assert refused.stderr == (
        "partavg: out holds a finished run: use --force to overwrite it, --resume to keep it, "
        "or another --out\n"
    )
    again = partavg("run", recipe, "--out", "out", "--resume", cwd=tmp_path)
    assert again.stdout == "out is finished already; a larger budget would go on\n"
    partavg("run", recipe, "--out", "out", "--force", cwd=tmp_path)
    assert files(tmp_path / "out") == before


def test_a_finished_run_goes_on_with_a_larger_budget(recipe: Path, tmp_path: Path) -> None:
    partavg("run", recipe, "--out", "out", cwd=tmp_path)
    longer = ("--set", "training.steps=18")
    done = partavg("run", recipe, *longer, "--out", "out", "--resume", cwd=tmp_path)
    assert "step 18/18" in done.stdout
    assert "18 steps" in (tmp_path / "out/report.html").read_text()
    partavg("run", recipe, *longer, "--out", "whole", cwd=tmp_path)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    shorter = ("--set", "training.steps=4", "--out", "out", "--resume")
    refused = partavg("run", recipe, *shorter, cwd=tmp_path, code=2)
    assert "out has a budget of 18 steps, 4 are fewer" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "averaging.intervall=8"], "did you mean 'averaging.interval'?"),
        (["--set", "averaging.parts=3"], "interval 4 cannot be cut into 3 parts"),
        (["--set", "training.workers=0"], "training.workers = 0: input should be greater"),
        (
            ["--set", "training.workers=20000"],
            "20000 workers cannot own 10 of 12000 samples each: use at most 1200",
        ),
        (["--set", "split.alpha=0"], "alpha 0.0 is not a number above 0"),
        (["--set", "averaging.partition=layer"], "cannot fill 4 parts: the model has 2 layers"),
        (["--set", "training.lr=fast"], 'training.lr = "fast": input should be a valid number'),
        (["--set", "training.lr=inf"], "training.lr = inf: input should be a finite number"),
        (["--out", "recipe.toml/x"], "Not a directory"),
        (["--set", "engine.device=warp"], "engine.device = 'warp' cannot be used"),
        (["--resume"], "--resume needs --out"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    recipe: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = partavg("run", recipe, *arguments, cwd=tmp_path, code=2)
    assert sentence in done.stderr
    assert done.stderr.startswith("partavg: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists(), "found before any work started"


def test_a_missing_recipe(tmp_path: Path) -> None:
    done = partavg("run", "nowhere.toml", cwd=tmp_path, code=2)
    assert done.stderr.startswith("partavg: cannot read nowhere.toml")


def test_lost_metrics(recipe: Path, tmp_path: Path) -> None:
    partavg("run", recipe, "--out", "o", cwd=tmp_path)
    (tmp_path / "o/summary.json").unlink()
    (tmp_path / "o/metrics.jsonl").write_bytes(b"")
    done = partavg("run", recipe, "--out", "o", "--resume", cwd=tmp_path, code=2)
    assert "start the run again with --force" in done.stderr


def test_divergence_is_exit_code_3(recipe: Path, tmp_path: Path) -> None:
    done = partavg("run", recipe, "--set", "training.lr=1e15", "--out", "o", cwd=tmp_path, code=3)
    assert re.search(r"of worker [\d, and more]+ is not finite at step \d+", done.stderr)
    assert "last good checkpoint" in done.stderr
    assert list((tmp_path / "o/checkpoints").glob("step-*.pt"))
    assert not (tmp_path / "o/summary.json").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the long run, uninterrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "recipe.toml").write_text(RECIPE)
    partavg("run", "recipe.toml", *LONG, "--out", "out", cwd=folder)
    return files(folder / "out")


@pytest.mark.slow
def test_killed_at_any_moment_a_run_resumes_to_the_same_bits(
    recipe: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    rows = 0
    for extra in (0, 6, 9, 14):  # killed four times, each further on
        words = ["run", recipe, *LONG, "--out", "out", "--resume"]
        process = Command(words, tmp_path, halts=extra + 10)
        wait_for_rows(out / "metrics.jsonl", rows + extra, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (out / "summary.json").exists()
        rows = (out / "metrics.jsonl").read_bytes().count(b"\n") if extra else 0
    partavg("run", recipe, *LONG, "--out", "out", "--resume", cwd=tmp_path)
    assert files(out) == whole


@pytest.mark.slow
def test_a_full_disk_ends_a_run_with_the_command_that_goes_on(recipe: Path, tmp_path: Path) -> None:
    """A process may write files of 100 kB only: as good as a full disk."""
    resource = pytest.importorskip("resource")
    command = [*COMMAND, "run", recipe, "--set", "model.hidden=[256]", "--out", "out"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert ended.returncode == 2
    match = re.fullmatch(
        r"partavg: no checkpoint could be written to .*: make room; continue with: partavg (.+)\n",
        ended.stderr,
    )
    assert match, ended.stderr
    assert "accuracy of u_K" in partavg(*shlex.split(match[1]), cwd=tmp_path).stdout


def test_ctrl_c_saves_and_prints_the_command_that_goes_on(
    recipe: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    process = Command(["run", recipe, *LONG, "--out", "out"], tmp_path, halts=40)
    wait_for_rows(tmp_path / "out" / "metrics.jsonl", 30, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors
    match = re.fullmatch(r"partavg: stopped and saved; continue with: partavg (.+)\n", errors)
    assert match, errors
    done = partavg(*shlex.split(match[1]), cwd=tmp_path)
    assert "accuracy of u_K" in done.stdout
    assert files(tmp_path / "out") == whole


def test_a_damaged_checkpoint_is_passed_over(
    recipe: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    process = Command(["run", recipe, *LONG, "--out", "out"], tmp_path, halts=40)
    wait_for_rows(tmp_path / "out" / "metrics.jsonl", 30, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    newest = max((tmp_path / "out" / "checkpoints").glob("step-*.pt"))
    newest.write_bytes(b"garbage")
    done = partavg("run", recipe, *LONG, "--out", "out", "--resume", cwd=tmp_path)
    assert re.search(r"^partavg: warning: checkpoint .* is damaged", done.stderr)
    assert files(tmp_path / "out") == whole


@pytest.mark.slow
def test_bars_in_a_terminal(recipe: Path, tmp_path: Path) -> None:
    """Under a pseudo-terminal there are bars, with colors."""
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "compare", str(recipe)],
        cwd=tmp_path,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end closed
            break
        if not chunk:
            break
        seen += chunk
    assert process.wait(seconds()) == 0
    text = seen.decode()
    assert "━" in text
    assert "12/12" in text
    assert "messages" in text
    assert "\x1b[" in text


def test_a_run_says_what_it_measured_and_no_more() -> None:
    """As one without a test set, or a regression, would end."""
    from partavg.cli.commands.run import _sentence
    from partavg.metrics.table import METRICS

    whole = {"accuracy": 0.5, "train_loss": 1.0, "peak_discrepancy": 2.0, "bytes": 3_000_000,
             "messages": 4, "seconds": 5.0, "timings": {"data": 1.0, "engine": 3.0}}  # fmt: skip
    assert _sentence(whole, METRICS["accuracy"], "") == (
        "accuracy of u_K 50.00 %, training loss 1.000, peak discrepancy 2, 3.0 MB sent per worker, "
        "4 messages, 5.0 s, data 25 %, engine 75 %"
    )
    assert _sentence({"bytes": 0}, None, "scaled") == "scaled, 0.0 MB sent per worker"
    assert _sentence({"timings": {"data": 0.0}}, None, "") == "data 0 %"
    assert _sentence({}, None, "") == "finished"
