"""The folder of a run: config, environment, metrics, summary, checkpoints, final model."""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from partavg import checkpoint
from partavg.config import Config
from partavg.config_toml import differences, parse
from partavg.metrics.metric import Row as Row
from partavg.recipes.files import read
from partavg.sinks.tensorboard import FOLDER

MADE_BY = "python"
"""The section of config.toml that says who made a run: no recipe can have it."""


class RunFolder:
    """Where a run keeps everything; the layout is documented in docs/runs.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.toml"
        self.metrics_path = path / "metrics.jsonl"
        self.summary_path = path / "summary.json"
        self.environment_path = path / "environment.json"
        self.split_path = path / "split.json"
        self.report_path = path / "report.html"
        self.scalars = path / FOLDER
        self.model_path = path / "model.pt"
        self.best_path = path / "best.pt"
        self.checkpoints = path / "checkpoints"

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config_path.exists()

    @property
    def finished(self) -> bool:
        """Whether a run ended here."""
        return self.summary_path.exists()

    def check_free(self, *, resume: bool, force: bool) -> None:
        """Raise a ValueError if a run here would overwrite something without `force`."""
        ours = (self.metrics_path, self.summary_path, self.model_path, self.checkpoints)
        if force or (resume and self.exists):
            return
        if self.exists and self.finished:
            raise ValueError(
                f"{self.path} holds a finished run: use --force to overwrite it or another --out"
            )
        if self.exists:
            raise ValueError(
                f"{self.path} holds an unfinished run at step "
                f"{checkpoint.latest_step(self.checkpoints) or 0}: "
                f"use --resume to continue it or --force to start again"
            )
        for path in ours:
            if path.exists():
                raise ValueError(
                    f"{path} would be overwritten, but {self.path} holds no run: "
                    f"use another --out, or --force"
                )

    def stored_config(self, wanted: Config) -> Config:
        """The config of the run to resume, which must be the one wanted.

        What the wanted one leaves to be chosen, engine, chunks and device, stays as it was chosen;
        where the metrics go beside their file may change.
        """
        stored = parse(read(self.config_path))
        stored = replace(stored, metrics=replace(stored.metrics, sinks=wanted.metrics.sinks))
        chosen, engine = stored.engine, wanted.engine
        if engine.name in ("auto", chosen.name):
            # A loop has no chunks, and auto may have taken a loop whatever chunk was given.
            free = engine.chunk == 0 or "looped" in (engine.name, chosen.name)
            chunk = chosen.chunk if free else min(engine.chunk, stored.training.workers)
            engine = replace(engine, name=chosen.name, chunk=chunk)
        if engine.precision == "auto":
            engine = replace(engine, precision=chosen.precision)
        if engine.device == "auto":
            engine = replace(engine, device=chosen.device)
        changed = differences(stored, replace(wanted, engine=engine))
        if changed:
            raise ValueError(
                f"{self.path} was started with another {changed[0]}: resume with the same recipe, "
                f"for example {self.config_path}"
            )
        return stored

    def write_start(self, config: str, about: Row) -> None:
        """Remove what an old run left here; write the config and environment of a new one."""
        self.path.mkdir(parents=True, exist_ok=True)
        old = (self.summary_path, self.config_path, self.model_path, self.metrics_path)
        shown = (self.split_path, self.report_path, *self.scalars.glob("events.*"))
        for path in (*old, *shown, self.best_path, *self.checkpoints.glob("step-*.pt")):
            path.unlink(missing_ok=True)
        write_text(self.config_path, config)
        self.write_environment(about)

    def write_environment(self, about: Row) -> None:
        """Write down what makes the numbers: the machine, and what is known `about` the run."""
        write_json(self.environment_path, environment() | about)

    def check_metrics(self, length: int) -> None:
        """Raise a ValueError if metrics that a checkpoint relies on are gone."""
        size = self.metrics_path.stat().st_size if self.metrics_path.exists() else 0
        if size < length:
            raise ValueError(
                f"{self.metrics_path} has {size} bytes, {length} were written before the "
                f"checkpoint: start the run again with --force"
            )

    def rows(self, length: int | None = None) -> Iterator[Row]:
        """The metrics written so far; a line that is being written is left out.

        With a `length` only those in as many bytes, which a checkpoint relies on.
        """
        read = 0
        with self.metrics_path.open(encoding="utf-8", newline="") as file:
            for number, line in enumerate(file, 1):
                read += len(line)  # ASCII: as many bytes
                if not line.endswith("\n") or (length is not None and read > length):
                    return
                yield _parsed(line, f"{self.metrics_path} is damaged at line {number}")

    def summary(self) -> Row:
        """The summary of a finished run."""
        return read_json(self.summary_path)

    def environment(self) -> Row:
        """What made the numbers, where that is known."""
        return read_json(self.environment_path) if self.environment_path.exists() else {}

    def write_split(self, counts: list[list[int]]) -> None:
        """Write how many samples of each class each worker owns, a line per worker."""
        lines = ",\n".join(map(json.dumps, counts))
        write_text(self.split_path, f'{{"counts": [\n{lines}\n]}}\n')

    def split(self) -> list[list[int]] | None:
        """How many samples of each class each worker owns; None where that is not known."""
        if not self.split_path.exists():
            return None
        counts: list[list[int]] = read_json(self.split_path)["counts"]
        return counts or None


def next_folder(name: str) -> Path:
    """The first of runs/name-1, runs/name-2, … that is free."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


def environment() -> Row:
    """What makes the numbers: versions, hardware, commit."""
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "partavg": version("partavg"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": cuda,
    }


def read_json(path: Path) -> Row:
    """Read a JSON file of a run."""
    return _parsed(path.read_text(encoding="utf-8"), f"{path} is damaged")


def _parsed(text: str, complaint: str) -> Row:
    try:
        row = json.loads(text)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{complaint}: leave this run out, or run it again with --force")
    return row


def write_json(path: Path, value: Row) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _commit() -> str | None:
    """The commit of the source this runs from, if it runs from a git checkout of its own."""
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
