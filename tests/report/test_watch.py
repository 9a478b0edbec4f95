"""`partavg watch` as a real process."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from click.testing import CliRunner
from tests.limits import seconds
from tests.report.folders import comparison, make, row

from partavg.cli import main
from partavg.report.watch import Watcher, server

COMMAND = [sys.executable, "-m", "partavg", "watch"]


@contextmanager
def watching(*arguments: object) -> Iterator[tuple[int, str]]:
    """The port of a process that watches, and what it said; it ends with Ctrl-C."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        yield int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1]), line
    finally:
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=seconds())
    assert (process.returncode, complaint) == (0, "")
    assert "stopped watching" in said


def ask(port: int, path: str = "/", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds())
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def test_a_page_that_follows_runs(tmp_path: Path) -> None:
    with watching(tmp_path / "runs") as (port, said):
        assert "no runs yet, waiting for some" in said
        status, headers, text = ask(port)
        assert status == 200
        assert "No runs yet" in text
        make(tmp_path / "runs" / "one", steps=30, finished=False)
        status, headers, text = ask(port, **{"If-None-Match": headers["ETag"]})
        assert status == 200
        assert "unfinished, step 30" in text
        assert 'data-refresh="3"' in text
        assert ask(port, **{"If-None-Match": headers["ETag"]})[0] == 304
        with (tmp_path / "runs" / "one" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(31, 100, 0, 10, 10, True)) + '\n{"step": 32, "l')
        assert "unfinished, step 31" in ask(port)[2]


def test_only_this_machine_and_only_the_page(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with watching(tmp_path) as (port, said):
        assert "(1 run)" in said
        assert ask(port, "/etc/passwd")[0] == 404
        assert ask(port, "/run/metrics.jsonl")[0] == 404
        for name in (f"evil.example:{port}", "127.0.0.1", f"localhost.evil.example:{port}", ""):
            assert ask(port, Host=name)[0] == 403
        assert ask(port, Host=f"localhost:{port}")[0] == 200
        with socket.socket() as other:
            address = socket.gethostbyname(socket.gethostname())
            if not address.startswith("127."):
                assert other.connect_ex((address, port)) != 0


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["watch", str(tmp_path), "--port", str(port)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"partavg: port {port} cannot be used")
    assert "give another --port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_damaged_run_does_not_end_it(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    (path / "metrics.jsonl").write_text("{\n")
    with server(Watcher(tmp_path, 3).page, 0) as served:
        Thread(target=served.serve_forever, kwargs={"poll_interval": 0.05}).start()
        status, _, text = ask(served.server_port)
        served.shutdown()
    assert status == 503
    assert "metrics.jsonl is damaged: line 1 is no row" in text


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch) -> None:
    from partavg.report import watch

    comparison(tmp_path)
    read = []
    load = watch.load
    monkeypatch.setattr(watch, "load", lambda path, *names: read.append(path) or load(path, *names))
    watcher = Watcher(tmp_path, 3)
    first = watcher.page()
    assert len(read) == 4
    assert watcher.page() is first
    with (tmp_path / "partial-seed0" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 101, "loss": 1.0}\n')
    assert watcher.page() != first
    assert read[4:] == [tmp_path / "partial-seed0"]
