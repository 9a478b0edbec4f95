"""Flower's own programs on free loopback ports, and nothing of them left behind."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.flower import keys, warm
from tests.limits import seconds

from partavg.flower.programs import free_port, processes_in, surroundings

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

APP = """
from tests.flower import federation
client = federation.client
server = federation.app_server
"""

PROJECT = """
[project]
name = "federation"
version = "1.0.0"
description = "Tests"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
"""


def toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


class Programs:
    """A SuperLink, SuperNodes and apps under one folder; close() ends them all."""

    def __init__(self, folder: Path, *, quick: bool = True) -> None:
        self.folder, self._quick = folder, quick
        self.port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        self.environ = surroundings(
            PATH=f"{folder}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}",
            PYTHONPATH=os.pathsep.join(map(str, (folder, ROOT / "src", ROOT))),
            FLWR_HOME=str(folder / "home"),
            HOME=str(folder),
            OMP_NUM_THREADS="1",
        )
        (folder / "home").mkdir(parents=True)
        keys.authority(folder)

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a program; what it says goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            program = subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._started.append(program)
        return program

    def superlink(self) -> None:
        """A SuperLink with TLS that knows SuperNodes by their keys."""
        if self._quick:
            warm.install(self.folder)
            self.start("warm", [sys.executable, "-m", "tests.flower.warm", str(self.folder)])
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem"]
        command += ["--ssl-keyfile", "server.key", "--enable-supernode-auth"]
        self.start("superlink", command)
        text = f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
        text += f'root-certificates = "{self.folder / "ca.crt"}"\n'
        self._ready(text, ssl.create_default_context(cafile=str(self.folder / "ca.crt")))
        if self._quick:
            self.wait((self.folder / "socket").exists, "a warm process")

    def simulation(self, nodes: int, processes: int) -> None:
        """A SuperLink that simulates nodes in processes."""
        command = ["flower-superlink", "--insecure", "--simulation"]
        self.start("superlink", [*command, "--host", "127.0.0.1", "--port", str(self.port)])
        text = f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        text += f"options.num-supernodes = {nodes}\n"
        text += "options.backend.client-resources.num-cpus = 1\n"
        text += f"options.backend.init-args.num-cpus = {processes}\n"
        self._ready(text, None)

    def _ready(self, connection: str, context: ssl.SSLContext | None) -> None:
        (self.folder / "home" / "config.toml").write_text(connection)
        url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}/health"

        def healthy() -> bool:
            try:
                answer = urllib.request.urlopen(url, context=context, timeout=seconds())
                return bool(answer.status == 200)
            except OSError:
                return False

        self.wait(healthy, "the SuperLink")

    def register(self, *names: str) -> None:
        """Make keys and let the SuperLink know them."""
        for name in names:
            keys.node_key(self.folder / name)
        command = ["flwr", "supernode", "register"]
        asked = [self.start(f"{name}.key", [*command, f"{name}.pub", "here"]) for name in names]
        self.wait(lambda: None not in [program.poll() for program in asked], "registration")
        assert not any(program.returncode for program in asked), "a key was refused"

    def supernode(self, name: str, config: str, *options: str) -> subprocess.Popen[bytes]:
        """A SuperNode with TLS and its key."""
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config]
        secure = ["--root-certificates", "ca.crt", "--auth-supernode-private-key", name]
        return self.start(name, [*command, *(options or secure)])

    def flwr(self, *arguments: str) -> str:
        """Run flwr to its end."""
        done = subprocess.run(
            ["flwr", *arguments], cwd=self.folder, env=self.environ, capture_output=True,
            text=True, timeout=seconds(),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def app(self, settings: dict[str, Any], text: str = APP) -> Path:
        """Write an app with settings of its own."""
        folder = self.folder / f"app{len(list(self.folder.glob('app*')))}"
        folder.mkdir()
        (folder / "app.py").write_text(text)
        lines = "\n".join(f"{key} = {toml(value)}" for key, value in settings.items())
        (folder / "pyproject.toml").write_text(PROJECT + lines)
        return folder

    def run(self, app: Path, **overrides: Any) -> str:
        """Hand an app to the SuperLink; the number of the run."""
        extra = [f"{key.replace('__', '.')}={toml(value)}" for key, value in overrides.items()]
        options = ["-c", " ".join(extra)] if extra else []
        said = json.loads(self.flwr("run", str(app), "here", "--format", "json", *options))
        assert said["success"], said
        return str(said["run-id"])

    def wait(self, done: Callable[[], object], what: str, limit: float = 500.0) -> None:
        """Wait for something to happen; all logs are shown if it does not."""
        ends = time.monotonic() + seconds(limit)
        while not done():
            if time.monotonic() > ends:
                logs = {path.name: path.read_text()[-3000:] for path in self.folder.glob("*.log")}
                raise AssertionError(
                    f"{what} did not happen\n"
                    + "\n".join(f"== {name}\n{text}" for name, text in logs.items())
                )
            for program in self._started:
                program.poll()  # what a program started ends only when the program is buried
            time.sleep(0.1)

    def halt(self, after: int | None) -> None:
        """Let servers go no further than a step, until they are told to."""
        draft = self.folder / "halting"
        draft.write_text(str(after or ""))
        draft.rename(self.folder / "halt")

    def close(self) -> None:
        """End every process that was started for this folder, by its id, then remove the folder."""
        ends = time.monotonic() + seconds()
        while self.signal(signal.SIGKILL) and time.monotonic() < ends:
            time.sleep(0.1)
        for program in self._started:
            program.wait(seconds())
        shutil.rmtree(self.folder, ignore_errors=True)

    def signal(self, number: signal.Signals, *words: str) -> bool:
        """Send a signal to the processes with these words; whether there are any."""
        found = self.processes(*words)
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        return bool(found)

    def processes(self, *words: str) -> list[int]:
        """The processes of this folder with all these words in their names or commands."""
        return processes_in(f"FLWR_HOME={self.folder / 'home'}", *words)
