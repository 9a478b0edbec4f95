"""A SuperNode whose clients start at once: from a warm process."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partavg.config_toml import toml
from partavg.flower.identity import KEY, Signer
from partavg.flower.memory import STATE_DIR
from partavg.flower.programs import end, free_port, surroundings
from partavg.flower.warm import Warm, warm

_LOOK, _PAUSE, _WELL = 0.5, 5.0, 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Node:
    """What a SuperNode is told."""

    superlink: str
    client: int
    state: Path
    key: Path | None = None
    certificates: Path | None = None
    device: str = "cpu"
    config: str = ""
    """More for --node-config."""
    patience: float = 90.0
    """Seconds to try again while it cannot join: Flower refuses a key for a minute after a kill."""

    def command(self, port: int) -> list[str]:
        """How to start it."""
        said: dict[str, Any] = {"partition-id": self.client, STATE_DIR: str(self.state.absolute())}
        said["device"] = self.device
        words = ["flower-supernode", "--superlink", self.superlink]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        if self.certificates:
            words += ["--root-certificates", str(self.certificates)]
        else:
            words += ["--insecure"]
        if self.key:
            Signer(self.key)  # says what is wrong with it
            said[KEY] = str(self.key.absolute())
            if self.certificates:
                words += ["--auth-supernode-private-key", str(self.key)]
        config = " ".join(f"{name}={toml(value)}" for name, value in said.items())
        return [*words, "--node-config", f"{config} {self.config}".strip()]

    def run(self, more: Sequence[str] = ()) -> int:
        """Run it until it is told to end, or cannot go on; how it ended."""
        command = [*self.command(free_port()), *more]
        environ = surroundings()
        signal.signal(signal.SIGTERM, _interrupt)
        with warm() as made:
            path = f"{made.folder}{os.pathsep}{environ['PATH']}"
            return _kept_running(command, {**environ, "PATH": path}, made, self.patience)


def _kept_running(
    command: Sequence[str], environ: Mapping[str, str], made: Warm, patience: float
) -> int:
    """Start a program again whenever it ends with an error, unless it does so time after time."""
    failing_since: float | None = None
    while True:
        began = time.monotonic()
        program = subprocess.Popen(command, env=dict(environ), stdin=subprocess.DEVNULL)
        try:
            while (code := program.poll()) is None:
                made.look()
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            return 0
        finally:
            end(program)
        now = time.monotonic()
        if code == 0:
            return 0
        if now - began > _WELL or failing_since is None:
            failing_since = now
        if now - failing_since >= patience:
            return code
        time.sleep(min(_PAUSE, patience))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
