"""Going on with a run: what may have changed meanwhile is written down, all else is refused."""

import json
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from filelock import FileLock, Timeout

from partavg.config_toml import dump_sections, flat_keys, toml
from partavg.core.rates import Rate
from partavg.flower.progress import ServerProgress
from partavg.flower.protocol import minor
from partavg.flower.settings import Settings
from partavg.folder import RunFolder, write_text
from partavg.kept_code import as_wanted, keep
from partavg.own_version import own_version
from partavg.recipes.files import read

CHANGES = "changes.jsonl"
"""What was changed when a run went on, in its folder: a line each time."""
_FREE = {
    "flower.folder", "flower.resume", "flower.local_steps",  # the interval says it
    "flower.min_clients", "flower.first", "flower.deadline", "flower.wait", "flower.patience",
    "flower.rest", "flower.catch_up", "flower.keys", "flower.max_samples", "flower.max_weight",
    "flower.max_change", "metrics.evaluate_every",
    "metrics.clients_every", "metrics.sinks", "metrics.tensorboard",
    "privacy.max_epsilon", "training.steps",
}  # fmt: skip
"""Settings that a run may go on with another value of; training.steps may only grow."""
_MISSING = object()
Change = dict[str, list[Any]]
"""Settings, and what each was and is."""


def check_startable(folder: RunFolder, *, resume: bool) -> None:
    """Raise a ValueError if what is in a run folder is not to be trained."""
    if folder.exists and (folder.finished or not resume):
        state = "a finished run" if folder.finished else "an unfinished run"
        remedy = "another flower.folder" if folder.finished else "flower.resume = true"
        raise ValueError(f"{folder.path} holds {state}: use {remedy}")


def claim(folder: RunFolder) -> FileLock:
    """Keep other servers out of a run folder as long as this process lives."""
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.path / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another server is training in {folder.path}: wait for its end, or use another "
            f"flower.folder"
        ) from None
    return lock


def changed(folder: RunFolder, settings: Settings, progress: ServerProgress) -> Change:
    """What is not as it was when a run was started; a ValueError if that must not change."""
    wanted = tomllib.loads(settings.dump())
    stored = as_wanted(folder.path, read(folder.config_path), wanted)
    was, now = flat_keys(dump_sections(stored)), flat_keys(dump_sections(wanted))
    found: Change = {}
    for key in {**was, **now}:
        old, new = was.get(key, _MISSING), now.get(key, _MISSING)
        if old == new or key in ("flower.folder", "flower.resume"):
            continue
        if key not in _FREE:
            raise ValueError(
                f"{folder.path} was started with {_told(key, old)}, and {_told(key, new)} is "
                f"wanted now: put {key} back, or begin another run with another flower.folder"
            )
        found[key] = [None if value is _MISSING else value for value in (old, new)]
    if "training.steps" in found:
        old, new = found["training.steps"]
        _check_budget(folder, old, new, settings, stored, progress)
    return found | _version_change(folder)


def record(folder: RunFolder, settings: Settings, change: Change, step: int) -> None:
    """Write down what has changed; the config of the run says what is in force."""
    if not change:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"after_step": step, "when": now, "changed": change})
    with (folder.path / CHANGES).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    write_settings(folder, settings)


def write_settings(folder: RunFolder, settings: Settings) -> None:
    """Write the settings of a run, and the Python of the user's own that they name."""
    kept = keep(folder.path, tomllib.loads(settings.dump()))
    write_text(folder.config_path, dump_sections(kept))


def _told(key: str, value: Any) -> str:
    return f"no {key}" if value is _MISSING else f"{key} = {toml(value)}"


def _check_budget(
    folder: RunFolder,
    old: int,
    new: int,
    settings: Settings,
    stored: Mapping[str, Any],
    progress: ServerProgress,
) -> None:
    """Raise a ValueError for a budget with which the steps so far would have been others."""
    remedy = "put training.steps back, or begin another run with another flower.folder"
    if new < old:
        raise ValueError(
            f"{folder.path} has a budget of {old} steps, and {new} are fewer: {remedy}"
        )
    if progress.stage == "end":
        raise ValueError(
            f"{folder.path} has nothing but its end left to do, with its {old} steps: {remedy}"
        )
    was, is_now = _rate(stored), settings.rate
    for step in range(1, progress.step + 1):
        if was(step) != is_now(step):
            raise ValueError(
                f"with training.steps = {new} the learning rate of step {step} would have been "
                f"{is_now(step):.4g}, and not {was(step):.4g}: {remedy}"
            )


def _rate(stored: Mapping[str, Any]) -> Rate:
    return Settings.read(flat_keys(dump_sections(stored))).rate


def _version_change(folder: RunFolder) -> Change:
    """A patch of partavg changes nothing but defects; another minor version may change a run."""
    was, now = folder.environment().get("partavg"), own_version()
    if was == now:
        return {}
    if was is None or minor(str(was)) != minor(now):
        raise ValueError(
            f"{folder.path} was started with partavg {was}, and this is {now}: install that one "
            f"on the server and all nodes, or begin another run with another flower.folder"
        )
    return {"partavg": [was, now]}
