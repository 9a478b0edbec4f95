"""An app in Flower's simulation runtime: one command, no network, nothing left running."""

import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from partavg.config_toml import toml
from partavg.flower.programs import end, end_all, free_port, surroundings
from partavg.flower.resuming import check_startable
from partavg.flower.settings import Settings
from partavg.folder import RunFolder
from partavg.registry import suggestion

_START = 120.0  # seconds for a SuperLink to answer
_NAME = "here"


def simulate(app: Path, changes: Sequence[str] = ()) -> RunFolder:
    """Train an app with as many simulated nodes as it has clients; the folder of the run."""
    if find_spec("ray") is None:
        raise ValueError(
            "Flower's simulation runtime needs Ray: pip install 'partavg[flower-simulation]'"
        )
    overrides = read_changes(app, changes)
    settings = Settings.read({**read_config(app), **overrides})
    workers, folder = settings.config.training.workers, RunFolder(settings.folder)
    check_startable(folder, resume=settings.flower.resume)
    with TemporaryDirectory(prefix="partavg-") as name:
        home, port = Path(name), free_port()
        text = f'[superlink.{_NAME}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (home / "config.toml").write_text(text)
        environ = surroundings(FLWR_HOME=str(home))
        command = ["flower-superlink", "--insecure", "--simulation"]
        with (home / "superlink.log").open("wb") as log:
            superlink = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            _wait_for(superlink, port, home / "superlink.log")
            words = ["flwr", "run", str(app), _NAME, "--stream"]
            words += ["--federation-config", f"num-supernodes={workers}"]
            said = " ".join(f"{key}={toml(value)}" for key, value in overrides.items())
            extra = ["-c", said] if said else []
            code = subprocess.run([*words, *extra], env=environ, check=False).returncode
        finally:
            end(superlink)
            end_all(f"FLWR_HOME={home}")
    if code or not folder.finished:
        raise ValueError(
            f"the run in {folder.path} did not reach its end: what stands above says why"
        )
    return folder


def read_config(app: Path) -> dict[str, Any]:
    """What stands in [tool.flwr.app.config] of an app, by dotted keys."""
    file = app / "pyproject.toml"
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        return _flat(tables["tool"]["flwr"]["app"]["config"])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = str(error)
    except LookupError:
        why = "it has no section tool.flwr.app.config"
    raise ValueError(
        f"{file} cannot be read ({why}): name the folder of an app, as partavg flower new makes one"
    )


def read_changes(app: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Changes `key=value` of what stands there; a text needs no quotes."""
    known, found = read_config(app), dict[str, Any]()
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or key not in known:
            raise ValueError(
                f"{change!r} changes nothing that stands in [tool.flwr.app.config] of "
                f"{app / 'pyproject.toml'}: {suggestion(key, known)}"
            )
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return found


def _wait_for(superlink: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    ends = time.monotonic() + _START
    while superlink.poll() is None and time.monotonic() < ends:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise ValueError(f"Flower's SuperLink did not start: {log.read_text(errors='replace')[-2000:]}")
