"""The folder of a run: config, environment, metrics, summary, checkpoints, final model."""

import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from partavg import checkpoint
from partavg.config import Config
from partavg.config_toml import differences, dump_sections, parse, to_tables
from partavg.json_text import json_text
from partavg.kept_code import as_wanted, forget, keep
from partavg.metrics.metric import Metric
from partavg.metrics.metric import Row as Row
from partavg.outputs import check_page
from partavg.own_version import own_version
from partavg.recipes.files import read
from partavg.run_files import read_json, read_rows, read_settings, read_split, read_summary
from partavg.sinks import bookmark, tensorboard
from partavg.sinks.jsonl import FILE

_BUDGET = {"training.steps", "training.epochs"}
CONFIG = "config.toml"
"""The recipe of a run."""

DATA = "data"
"""What environment.json calls the fingerprints of training and test samples."""

MADE_BY = "python"
"""The section of config.toml that says who made a run: no recipe can have it."""


class RunFolder:
    """Where a run keeps everything; the layout is documented in docs/runs.md."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / CONFIG
        self.metrics_path = path / FILE
        self.shown_path = path / "metrics.json"
        self.summary_path = path / "summary.json"
        self.diverged_path = path / "diverged.json"
        self.environment_path = path / "environment.json"
        self.split_path = path / "split.json"
        self.report_path = path / "report.html"
        self.scalars = path / tensorboard.FOLDER
        self.bookmarks = path / bookmark.FOLDER
        self.model_path = path / "model.pt"
        self.best_path = path / "best.pt"
        self.checkpoints = path / "checkpoints"

    @property
    def exists(self) -> bool:
        """Whether a run was started here; a config.toml by itself may be anybody's."""
        return self.config_path.exists() and self._is_ours()

    def _is_ours(self) -> bool:
        """Whether a run wrote down here what makes its numbers, which it does before all else."""
        if not self.environment_path.is_file():
            return False
        return b'"started"' in self.environment_path.read_bytes()

    @property
    def finished(self) -> bool:
        """Whether a run ended here."""
        return self.summary_path.exists()

    def check_free(self, *, resume: bool, force: bool) -> None:
        """Raise a ValueError if a run here would overwrite or hide what is not its own.

        `force` gives away the run that is here, and nothing else.
        """
        if not self.exists:
            self._check_nesting()
            self._check_strangers()
            return
        check_page(self.report_path, force=force)
        if force or resume:
            return
        if self.finished:
            raise ValueError(
                f"{self.path} holds a finished run: use --force to overwrite it, --resume "
                f"to keep it, or another --out"
            )
        raise ValueError(
            f"{self.path} holds an unfinished run at step "
            f"{checkpoint.latest_step(self.checkpoints) or 0}: "
            f"use --resume to continue it or --force to start again"
        )

    def _check_strangers(self) -> None:
        """Where there is no run, files with the names of a run's are somebody else's.

        Unless only the config is missing: that is what is left of a run killed while it began.
        """
        if self._is_ours() and not self.config_path.exists():
            return
        marks = (self.config_path, self.environment_path, self.checkpoints)
        for path in (*marks, *self._content()):
            if path.exists():
                raise ValueError(
                    f"{path} would be overwritten, but {self.path} holds no run: use another "
                    f"--out, or move it away"
                )

    def _check_nesting(self) -> None:
        """A run in a run's folder, or around others, would hide them or be hidden in reports."""
        for above in self.path.resolve().parents:
            if RunFolder(above).exists:
                raise ValueError(f"{self.path} lies in {above}, which is a run: use another --out")
        for below in ("*", "*/*", "*/*/*"):  # as deep as any command puts runs
            for path in sorted(self.path.glob(f"{below}/config.toml")):
                if RunFolder(path.parent).exists:
                    raise ValueError(
                        f"{self.path} holds other runs, as {path.parent.relative_to(self.path)}, "
                        f"and a run there would hide them: use another --out"
                    )

    def _content(self) -> list[Path]:
        """All files of a run but those that say that it is one."""
        kept = [self.summary_path, self.model_path, self.best_path, self.metrics_path]
        kept.append(self.diverged_path)
        shown = [self.shown_path, self.split_path, self.report_path, *self.scalars.glob("events.*")]
        shown += self.bookmarks.glob("*.json")
        saved = (self.checkpoints.glob(f"{name}-*.pt") for name in ("step", "clients"))
        return [*kept, *shown, *chain(*saved)]

    def stored_config(self, wanted: Config) -> Config:
        """The config of the run to resume, which must be the one wanted but for its budget.

        What the wanted one leaves to be chosen, engine, chunks and device, stays as it was chosen;
        where the metrics go beside their file may change. Files that it names are where the wanted
        one has them.
        """
        tables = read(self.config_path)
        tables.get("metrics", {}).pop("sinks", None)
        stored = parse(as_wanted(self.path, tables, to_tables(wanted)))
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
        differing = differences(stored, replace(wanted, engine=engine))
        changed = [key for key in differing if key not in _BUDGET]
        if changed:
            raise ValueError(
                f"{self.path} was started with another {changed[0]}: resume with the same recipe "
                f"and settings, or this run alone by partavg run {self.config_path} --out "
                f"{self.path} --resume"
            )
        return stored

    def check_data(self, fingerprints: Mapping[str, str]) -> None:
        """Raise a ValueError if a run that is to go on was started with other samples.

        Runs of before 0.2 did not write down with which.
        """
        stored = self.environment().get(DATA)
        known = stored if isinstance(stored, dict) else {}
        for side, what in (("train", "training samples"), ("test", "test samples")):
            if side in known and side in fingerprints and known[side] != fingerprints[side]:
                raise ValueError(
                    f"{self.path} was started with other {what} than there are now, by their "
                    f"number, shape or content: give the data as they were, or use another --out"
                )

    def write_start(self, config: str, about: Row) -> None:
        """Remove what an old run left here; write the config and environment of a new one."""
        self.path.mkdir(parents=True, exist_ok=True)
        for path in (self.summary_path, self.config_path, *self._content()):
            path.unlink(missing_ok=True)
        forget(self.path)
        self.write_environment(about)  # without it a config is no run
        self._write_config(config)

    def _write_config(self, config: str) -> None:
        """Write the settings, and the Python of the user's own that they name."""
        tables = tomllib.loads(config)
        kept = tables if MADE_BY in tables else keep(self.path, tables)
        write_text(self.config_path, dump_sections(kept))

    def reopen(self, config: str, step: int) -> None:
        """Let a run that was restored at a step go on with a larger budget, and another config.

        In this order, so that a kill in between leaves a run at its old end, which can be resumed.
        """
        if self.finished and not step:
            raise ValueError(
                f"{self.path} has no checkpoint that is whole, and cannot go on from its end: "
                f"begin again with --force, or with another --out"
            )
        self.summary_path.unlink(missing_ok=True)
        self._write_config(config)

    def write_environment(self, about: Row) -> None:
        """Write down what makes the numbers: the machine, and what is known `about` the run."""
        write_json(self.environment_path, environment() | about)

    def write_metrics(self, asked: Sequence[Metric]) -> None:
        """Write how metrics that were asked for are shown, for readers without their code."""
        if asked:
            write_json(self.shown_path, {metric.key: metric.appearance() for metric in asked})

    def metrics(self) -> list[Metric]:
        """The metrics that this run was asked for, to be shown."""
        if not self.shown_path.exists():
            return []
        try:
            written = read_json(self.shown_path).items()
            return [Metric.of_appearance(key, values) for key, values in written]
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.shown_path} is damaged: {error}; remove it, and only the usual metrics are "
                f"shown"
            ) from None

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
        return read_rows(self.metrics_path, length)

    def summary(self) -> Row:
        """The summary of a finished run."""
        return read_summary(self.summary_path, self.metrics())

    def settings(self) -> dict[str, Any]:
        """The keys of its config, `section.key`, as they stand there."""
        return read_settings(self.config_path)

    def environment(self) -> Row:
        """What made the numbers, where that is known."""
        return read_json(self.environment_path) if self.environment_path.exists() else {}

    def note_diverged(self, why: str) -> None:
        """Remember that the run diverged: it would again."""
        write_json(self.diverged_path, {"why": why})

    def why_diverged(self) -> str:
        """What was said of a run that diverged; empty if it did not."""
        path = self.diverged_path
        return str(read_json(path).get("why")) if path.exists() else ""

    def write_split(self, counts: list[list[int]]) -> None:
        """Write how many samples of each class each worker owns, a line per worker."""
        lines = ",\n".join(map(json.dumps, counts))
        write_text(self.split_path, f'{{"counts": [\n{lines}\n]}}\n')

    def split(self) -> list[list[int]] | None:
        """How many samples of each class each worker owns; None where that is not known."""
        return read_split(self.split_path) if self.split_path.exists() else None


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
        "partavg": own_version(),
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


def write_json(path: Path, value: Row) -> None:
    """Write JSON atomically."""
    write_text(path, json_text(value, indent=2, ensure_ascii=False) + "\n")


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
