"""Processes of apps forked from a warm one: a test would wait seconds for each import otherwise.

    python -m tests.flower.warm FOLDER

listens on FOLDER/socket; `install` writes programs named as Flower's that ask it to fork. The fork
has the name and the arguments of Flower's program and runs what that would run.
"""

import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

APPS = ("flwr-clientapp", "flwr-serverapp")

SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    order = dict(argv=argv, cwd=os.getcwd(), environ=dict(os.environ))
    connection.sendall(json.dumps(order).encode())
"""

QUICK = """
import sys, time
if sys.argv and sys.argv[0].endswith("flower-supernode"):
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection
    for module in (heartbeat, fleet_http_connection):
        module.HEARTBEAT_DEFAULT_INTERVAL = 10  # the dead are missed after 20 s, not 60
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.2))  # it sleeps 3 s between two looks
"""


def install(folder: Path) -> None:
    """Write what shortens the waiting, for PATH and PYTHONPATH."""
    for name in APPS:
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, socket=str(folder / "socket")))
        shim.chmod(0o755)
    (folder / "sitecustomize.py").write_text(QUICK)


def halt(folder: Path) -> None:
    """Servers wait after the step that FOLDER/halt names, as long as it does."""
    from partavg.flower.run import FederatedRun

    rows = FederatedRun.__iter__

    def named() -> str:
        return (folder / "halt").read_text() if (folder / "halt").exists() else ""

    def halting(self: FederatedRun) -> Iterator[Any]:
        for row in rows(self):
            yield row
            while named() == str(row["step"]):
                time.sleep(0.05)

    FederatedRun.__iter__ = halting  # type: ignore[method-assign]


def serve(folder: Path) -> None:
    """Fork a process for every order."""
    import httpcore  # noqa: F401
    import tests.flower.federation  # noqa: F401
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    halt(folder)
    programs = dict(zip(APPS, (flwr_clientapp, flwr_serverapp), strict=True))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as file:
                order = json.loads(file.read())
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.environ.clear()
                os.environ.update(order["environ"])
                os.chdir(order["cwd"])
                sys.argv = order["argv"]
                Path("/proc/self/comm").write_text(sys.argv[0])
                with suppress(SystemExit):
                    programs[sys.argv[0]]()
                os._exit(0)  # not the slow end of an interpreter


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
