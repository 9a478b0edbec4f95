"""Processes forked from one that has imported everything, which takes seconds each time."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.halting import halt_after
from tests.limits import seconds

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.preloaded"])


class Command:
    """A `partavg` command in a process of its own, used like subprocess.Popen.

    One that `halts` goes on after so many steps only when it has got a signal.
    """

    def __init__(
        self, arguments: Sequence[object], cwd: Path, *, halts: int = 0, **environment: str
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._streams = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        words = [str(argument) for argument in arguments]
        given = words, cwd, {**os.environ, **environment}, halts, *self._streams
        self._process = context.Process(target=_partavg, args=given)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        """What it wrote, when it has ended."""
        self._process.join(seconds())
        return self.kill()

    def kill(self) -> tuple[str, str]:
        """End it, wherever it is; what it wrote."""
        self._process.kill()
        self._process.join()
        stdout, stderr = (s.read_text() if s.exists() else "" for s in self._streams)
        self._folder.cleanup()
        return stdout, stderr

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


def _partavg(
    words: list[str], cwd: Path, environ: dict[str, str], halts: int, *streams: Path
) -> None:
    from partavg.cli import main

    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    if halts:
        halt_after(halts)
    for number, path in enumerate(streams, 1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    with open(1, "w", closefd=False) as sys.stdout, open(2, "w", 1, closefd=False) as sys.stderr:
        sys.argv = ["partavg", *words]
        main(words, prog_name="partavg")
