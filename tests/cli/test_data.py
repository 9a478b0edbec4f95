"""`partavg data`, as a person uses it."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.limits import seconds

from partavg.cli import main
from partavg.cli.transfer import transfer
from partavg.data import DATASETS
from published import write_cifar10, write_femnist
from server import serving

# A process in which CIFAR-10 is what a server of the test offers. When the server falls silent, the
# process gets a Ctrl-C, as from the person who waits.
SCRIPT = """
import http.client, json, os, signal, sys
from dataclasses import replace
from partavg.cli import main
from partavg.data import SOURCES
url, size, sha256, sent = json.loads(sys.argv.pop(1))
source = SOURCES["cifar10"]
download = replace(source.downloads[0], url=url, size=size, sha256=sha256)
SOURCES["cifar10"] = replace(source, downloads=(download,))
read, came = http.client.HTTPResponse.read1, 0
def read1(self, *size):
    global came
    if came == sent:
        os.kill(os.getpid(), signal.SIGINT)
    block = read(self, *size)
    came += len(block)
    return block
http.client.HTTPResponse.read1 = read1
main(prog_name="partavg")
"""
CLOSED = "http://127.0.0.1:9"


def start(*command: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "no_proxy": "", **environment},
    )


def partavg(*arguments: object, code: int = 0, **environment: str) -> tuple[str, str]:
    """Run a command in this process."""
    runner = CliRunner(env=environment)
    done = runner.invoke(main, list(map(str, arguments)), prog_name="partavg")
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def row(output: str, name: str) -> str:
    (line,) = (line for line in output.splitlines() if line.split()[:1] == [name])
    return line


def test_the_list(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py/test_batch").unlink()
    (tmp_path / ".partavg").mkdir()
    (tmp_path / ".partavg/aclImdb_v1.tar.gz.part").write_bytes(b"0" * 300_000)
    output, _ = partavg("data", PARTAVG_DATA=str(tmp_path))
    assert f"root: {tmp_path}" in output
    assert "comes with the package" in row(output, "fashion_subset")
    assert "files there" in row(output, "femnist")
    assert "lacks cifar-10-batches-py/test_batch" in row(output, "cifar10")
    assert "60,000 color images 32 × 32, 100 classes" in row(output, "cifar100")
    assert "not there" in row(output, "cifar100")
    assert "0.3 MB of 84.1 MB fetched" in row(output, "imdb")
    DATASETS["femnist"](tmp_path)
    output, _ = partavg("data", "--data", tmp_path)
    assert "ready" in row(output, "femnist")
    assert row(output, "femnist").rstrip().endswith("MB")


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    _, errors = partavg("data", "fetch", "cifar10", "smhn", "--data", tmp_path, code=2)
    assert errors == "partavg: dataset 'smhn' is not known: did you mean 'svhn'?\n"
    _, errors = partavg("data", "--data", tmp_path, "fetch", "femnist", code=2)
    assert errors.startswith("partavg: femnist has no official download: make it with LEAF")
    assert errors.endswith(f"{tmp_path}\n")


def test_offline(tmp_path: Path) -> None:
    arguments = ("data", "fetch", "cifar10", "--data", tmp_path)
    process = start("-m", "partavg", *arguments, https_proxy=CLOSED, HTTPS_PROXY=CLOSED)
    _, errors = process.communicate(timeout=seconds())
    assert process.returncode == 2
    assert re.fullmatch(
        r"partavg: cannot download https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz "
        r"\(.*refused.*\): try again later, or get cifar-10-python.tar.gz elsewhere and put it in "
        f"{tmp_path}\n",
        errors,
    )


def test_ctrl_c_keeps_what_was_fetched(tmp_path: Path) -> None:
    with serving() as server:
        server.files["cifar-10-python.tar.gz"] = b"0" * 3000
        server.stop_after, server.hang = 2000, True
        published = json.dumps([f"{server.url}/cifar-10-python.tar.gz", 3000, "0" * 64, 2000])
        command = ("-c", SCRIPT, published, "data", "fetch", "cifar10", "--data", tmp_path)
        process = start(*command, no_proxy="*")
        output, errors = process.communicate(timeout=seconds())
        assert output.startswith("cifar-10-python.tar.gz: 0.0 of 0.0 MB\n")
        assert process.returncode == 130
        assert errors == (
            f"partavg: stopped; continue with: partavg data fetch cifar10 --data {tmp_path}\n"
        )
    assert (tmp_path / ".partavg/cifar-10-python.tar.gz.part").read_bytes() == b"0" * 2000


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_in_a_terminal_and_lines_elsewhere(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partavg.cli.transfer.monotonic", lambda: 0.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with transfer(console) as shown:
        for done in (0, 2_000_000, 4_000_000):
            shown.update("a.tar.gz", done, 4_000_000)
        shown.say("[done]")
    text = console.file.getvalue()
    assert ("━" in text) == terminal
    assert ("4.0/4.0 MB" in text) == terminal
    assert text.endswith("a.tar.gz: 0.0 of 4.0 MB\n[done]\n") != terminal
    assert "[done]" in text


@pytest.mark.parametrize("command", [("data",), ("data", "fetch")])
def test_help(command: tuple[str, ...]) -> None:
    output, _ = partavg(*command, "--help")
    assert "Examples:" in output
    assert "--data ROOT" in output
