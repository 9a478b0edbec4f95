"""Processes of apps forked from a warm one: each message would wait seconds for imports otherwise.

It listens on FOLDER/socket. `install` writes programs into FOLDER that are named as Flower's; with
FOLDER first in PATH they ask the warm process to fork. The fork has the name, the arguments and
the surroundings of Flower's program, and does what that would do.
"""

import gc
import json
import logging
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

log = logging.getLogger("flwr")

CLIENT_APP = "flwr-clientapp"
_START = 120.0  # seconds until it is warm; then nodes begin without
_YOUNG = 30.0  # seconds within which one that ends is given up
_PARENT = 1.0  # seconds between two looks whether anybody needs it still

SHIM = """#!{python} -IS
import fcntl, json, os, socket, sys
folder, name, words = {folder!r}, os.path.basename(sys.argv[0]), sys.argv[1:]
order = dict(argv=[name, *words], cwd=os.getcwd(), environ=dict(os.environ))
try:
    os.chdir(folder)  # a socket's name must be short
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("socket")
        connection.sendall(json.dumps(order).encode())
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1):
            sys.exit()
except OSError:
    pass
# There is no warm process: start Flower's own program, but never a second one beside a first that
# is slow to start, which would make both slower still.
os.chdir(order["cwd"])
lock = os.open(folder + "/cold", os.O_CREAT | os.O_WRONLY, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(name + ": another one is still starting or at work")
os.set_inheritable(lock, True)
places = os.environ["PATH"].split(os.pathsep)
os.environ["PATH"] = os.pathsep.join(place for place in places if place != folder)
os.execvp(name, [name, *words])
"""


def install(folder: Path, *names: str) -> None:
    """Write programs that ask the warm process in a folder to fork."""
    for name in names or (CLIENT_APP,):
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, folder=str(folder)), encoding="utf-8")
        shim.chmod(0o700)


@contextmanager
def warm() -> Iterator["Warm"]:
    """A warm process, and a folder for PATH; both are gone afterwards."""
    with TemporaryDirectory(prefix="partavg-") as name:
        made = Warm(Path(name))
        try:
            made.begin()
            yield made
        finally:
            made.end()


class Warm:
    """The warm process of a folder, which is started again if it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: BaseProcess | None = None
        self._began = 0.0

    def begin(self) -> None:
        """Start it, and wait until it is warm."""
        if not hasattr(os, "fork"):
            return  # apps start as Flower starts them
        install(self.folder)
        self._start()
        ends = time.monotonic() + _START
        while not (self.folder / "socket").exists() and time.monotonic() < ends:
            if not (self._process and self._process.is_alive()):
                break
            time.sleep(0.05)

    def look(self) -> None:
        """Start it again if it has ended, unless it does that at once."""
        if self._process and not self._process.is_alive():
            if time.monotonic() - self._began > _YOUNG:
                self._start()
            else:
                log.warning("partavg: there is no warm process: each message starts its own")
                self._process = None

    def end(self) -> None:
        """End it; what it forked goes on."""
        if self._process:
            self._process.kill()
            self._process.join()

    def _start(self) -> None:
        self._began = time.monotonic()
        for name in ("socket", "draft"):
            (self.folder / name).unlink(missing_ok=True)
        self._process = _forked(self.folder)


def _forked(folder: Path) -> BaseProcess:
    """A process that begins with all that this one has imported."""
    process = get_context("fork").Process(target=serve_clients, args=(folder,))
    process.start()
    return process


def serve_clients(folder: Path) -> NoReturn:
    """Import what clients need, then fork one for every order."""
    import httpcore  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    import partavg.flower  # noqa: F401

    serve(folder, {CLIENT_APP: flwr_clientapp})


def serve(folder: Path, programs: Mapping[str, Callable[[], object]]) -> NoReturn:
    """Fork a process for every order, as long as whoever started this lives."""
    parent, begun = os.getppid(), deque[str](maxlen=1000)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those that are asked to end
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # a socket's name must be short
        listener.bind("draft")
        listener.listen()
        listener.settimeout(_PARENT)
        os.rename("draft", "socket")
        while os.getppid() == parent:
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                _answer(connection, listener, programs, begun)
    sys.exit()


def _answer(
    connection: socket.socket,
    listener: socket.socket,
    programs: Mapping[str, Callable[[], object]],
    begun: deque[str],
) -> None:
    """Fork what is asked for, but nothing twice."""
    with connection, suppress(OSError, ValueError):
        connection.settimeout(10.0)
        with connection.makefile("rb") as file:
            order = json.loads(file.read())
        connection.sendall(b"+")  # if this process dies now, Flower asks again
        task = json.dumps(order["argv"])
        if task in begun:
            return
        begun.append(task)
        if os.fork() == 0:
            listener.close()
            connection.close()
            _become(order, programs)


def _become(order: dict[str, object], programs: Mapping[str, Callable[[], object]]) -> NoReturn:
    """Be the program that was asked for; never come back."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(order["environ"])  # type: ignore[call-overload]
        os.chdir(str(order["cwd"]))
        sys.argv = list(order["argv"])  # type: ignore[call-overload]
        _be_another()
        programs[sys.argv[0]]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)  # not the slow end of an interpreter


def _be_another() -> None:
    """A name and random numbers of its own, as a new process has them."""
    import numpy as np

    random.seed()
    np.random.seed()
    with suppress(OSError):
        Path("/proc/self/comm").write_text(sys.argv[0])
