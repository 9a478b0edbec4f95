"""Runs as a report sees them: read from their folders, finished or not."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partavg.comparison import SCHEMES, Result, StartedRun
from partavg.folder import RunFolder
from partavg.metrics.metric import Metric, Row, distinct
from partavg.metrics.table import presented

Numbers = NDArray[np.float64]

_PARTS = "discrepancy_parts"
_MOST = 1e100  # what is larger could not be drawn
_UNUSED = {"step", "lr", "messages", "stage", "part", "clients", "away", "late", "sent", "received",
           "accuracy_all"}  # fmt: skip


class Series(NamedTuple):
    """What was measured, [n] or [n, parts], and after which steps."""

    steps: Numbers
    values: Numbers


_OF_SAMPLES = ("data.samples", "data.sha256", "split.sha256")
"""Settings of a simulation made in Python that say what its clients own."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """One run: its name on the page, the scheme it is a seed of, and all that is known of it."""

    path: Path
    name: str
    group: str
    settings: dict[str, Any]
    environment: Row
    series: dict[str, Series]
    summary: Row | None
    split: list[list[int]] | None
    step: int
    """The last step it took."""
    metrics: tuple[Metric, ...] = ()
    """Those that it was asked for beside the usual ones."""
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their seed only."""

    name: str
    runs: tuple[ShownRun, ...]

    @property
    def result(self) -> Result:
        """The summaries of those that are finished."""
        ended = {place: run for place, run in enumerate(self.runs) if run.summary}
        seeds = tuple(run.settings.get("training.seed", place) for place, run in ended.items())
        summaries = tuple(run.summary or {} for run in ended.values())
        return Result(self.name, summaries, seeds, self.metrics)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those that the runs were asked for beside the usual ones."""
        return tuple(distinct(metric for run in self.runs for metric in run.metrics))

    @property
    def shown(self) -> Result:
        """The same or, as long as none is finished, what all have so far."""
        if self.result.summaries:
            return self.result
        return Result(self.name, tuple(map(_so_far, self.runs)), metrics=self.metrics)

    @property
    def status(self) -> str:
        """How far they got, if they did not all get to their end; else empty."""
        open_runs = [run for run in self.runs if run.summary is None]
        if not open_runs:
            return ""
        step = min(run.step for run in open_runs)
        lost = sum(run.diverged for run in open_runs)
        if len(self.runs) == 1:
            return f"diverged after step {step}" if lost else f"unfinished, step {step}"
        counts = {"diverged": lost, "unfinished": len(open_runs) - lost}
        said = [f"{count} of {len(self.runs)} {how}" for how, count in counts.items() if count]
        return f"{', '.join(said)}, from step {step}"


def grouped(runs: Iterable[ShownRun]) -> list[Group]:
    """The groups of some runs: the usual schemes, alike on every page, then as they appear."""
    found: dict[str, list[ShownRun]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    usual = [name for name in SCHEMES if name in found]
    names = dict.fromkeys([*usual, *found])
    return [Group(name, tuple(found[name])) for name in names]


def of_entries(entries: Sequence[StartedRun], prefix: str = "") -> list[ShownRun]:
    """The runs of a comparison that were started; a scheme is a group."""
    return [
        load(entry.folder.path, f"{prefix}{entry.scheme}, seed {entry.seed}", prefix + entry.scheme)
        for entry in entries
        if entry.folder.exists
    ]


def gather(paths: Sequence[Path]) -> list[ShownRun]:
    """The runs in some folders: run folders, or folders that contain them."""
    folders: dict[Path, None] = {}
    for path in paths:
        found = find(path)
        if not found:
            raise ValueError(
                f"{path} holds no run: name run folders, or folders that contain run folders"
            )
        folders.update(dict.fromkeys(found))
    return [load(path, *names) for path, names in named(list(folders)).items()]


def find(path: Path) -> list[Path]:
    """The run folders at or below a folder, in the order in which they were started."""
    found = []
    for folder, inner, files in os.walk(path.resolve()):
        if "config.toml" in files and {"environment.json", "metrics.jsonl"} & set(files):
            found.append(Path(folder))
            inner.clear()
    return sorted(
        found, key=lambda folder: (str(RunFolder(folder).environment().get("started")), folder)
    )


def named(folders: Sequence[Path]) -> dict[Path, tuple[str, str]]:
    """The name and the group of each run folder: `scheme-seed0` is a seed of `scheme`."""
    above = os.path.commonpath([folder.parent for folder in folders]) if folders else ""
    names = {folder: folder.relative_to(above).as_posix() for folder in folders}
    seeds = {folder: re.fullmatch(r"(.+)-seed(\d+)", name) for folder, name in names.items()}
    alike: dict[str, list[object]] = {}
    for folder, seed in seeds.items():
        alike.setdefault(seed[1] if seed else names[folder], []).append(_what(folder))
    found = {}
    for folder, name in names.items():
        seed = seeds[folder]
        if seed and all(other == alike[seed[1]][0] for other in alike[seed[1]]):
            found[folder] = f"{seed[1]}, seed {seed[2]}", seed[1]
        else:
            found[folder] = name, name
    return found


def _what(folder: Path) -> dict[str, Any]:
    """The settings that seeds of one scheme share: not what was drawn, nor how it is computed."""
    kept = RunFolder(folder).settings()
    own = re.compile(r"training\.seed|engine\..*|.*\.(seed|sha256)")
    return {key: value for key, value in kept.items() if not own.fullmatch(key)}


def load(path: Path, name: str, group: str) -> ShownRun:
    """Read a run as far as it got."""
    folder = RunFolder(path)
    series = columns(folder.rows()) if folder.metrics_path.exists() else {}
    summary = folder.summary() if folder.finished else None
    steps = [int(one.steps[-1]) for one in series.values()]
    settings = folder.settings()
    private = "privacy.clip" in settings  # then pages say nothing of clients' samples
    if private:
        settings = {k: v for k, v in settings.items() if k not in _OF_SAMPLES}
    return ShownRun(
        path,
        name,
        group,
        settings,
        folder.environment(),
        series,
        summary,
        None if private else folder.split(),
        max(steps, default=int(summary.get("steps") or 0) if summary else 0),
        tuple(folder.metrics()),
        diverged=bool(folder.why_diverged()),
    )


def _so_far(run: ShownRun) -> Row:
    """What a summary would say of a run that is not finished."""
    found: Row = {}
    for metric in presented(run.metrics):
        if metric.key in run.series:
            found |= metric.summarized(run.series[metric.key].values.tolist())
    return found


def columns(rows: Iterable[Row]) -> dict[str, Series]:
    """Metrics by name; what is not a finite number is left out, lists but for those of parts."""
    steps: defaultdict[str, list[float]] = defaultdict(list)
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        for key, value in row.items():
            fit = _is_list(value) if key == _PARTS else _is_finite(value)
            if key not in _UNUSED and fit:
                steps[key].append(row["step"])
                values[key].append(value)
    return {
        key: Series(np.array(steps[key], float), _rows(v) if key == _PARTS else np.array(v, float))
        for key, v in values.items()
    }


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < _MOST


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_finite, value))


def _rows(values: list[list[float]]) -> Numbers:
    """Lists as rows; where a schedule adapts, they may have different lengths."""
    array = np.full((len(values), max(map(len, values))), np.nan)
    for place, row in enumerate(values):
        array[place, : len(row)] = row
    return array
