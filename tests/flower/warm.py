"""Client processes forked from a warm one: a test would wait seconds for each import otherwise.

    python -m tests.flower.warm FOLDER

listens on FOLDER/socket; `install` writes a program named flwr-clientapp that asks it to fork.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    order = dict(argv=sys.argv[1:], cwd=os.getcwd(), environ=dict(os.environ))
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
    time.sleep = lambda seconds: sleep(min(seconds, 0.1))  # it sleeps 3 s between two looks
"""


def install(folder: Path) -> None:
    """Write what shortens the waiting, for PATH and PYTHONPATH."""
    shim = folder / "flwr-clientapp"
    shim.write_text(SHIM.format(python=sys.executable, socket=str(folder / "socket")))
    shim.chmod(0o755)
    (folder / "sitecustomize.py").write_text(QUICK)


def serve(folder: Path) -> None:
    """Fork a client process for every order."""
    from flwr.supernode.cli import flwr_clientapp

    import partavg.flower  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
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
                sys.argv = ["flwr-clientapp", *order["argv"]]
                flwr_clientapp()
                os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
