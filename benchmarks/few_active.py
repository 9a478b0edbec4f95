"""Few active workers: each way of handing over with its own best rate, as two studies sweep it.

The ways are the schemes of `study/participation`: how newcomers begin, and after how many cycles
workers change. Runs are shared by all processes that work on one folder; one that is killed lets go
of its run, and the next goes on with it.
"""

import csv
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from partavg.comparison import Result, StartedRun
from partavg.config import Config, create
from partavg.data.dataset import Dataset
from partavg.metrics.metric import number
from partavg.metrics.table import main_metric
from partavg.pairs import compared
from partavg.recipe import Recipe, load
from partavg.recipe_run import Run
from partavg.session import Diverged
from partavg.sweeps.findings import lost, said, tuned
from partavg.sweeps.of_recipe import RecipeSweep
from partavg.sweeps.outcome import outcome
from partavg.sweeps.runner import Sweeping
from partavg.sweeps.search import Listed
from partavg.sweeps.space import Point, axes_of

STUDY = "study/participation"
ORDER = (
    "periodic", "partial-listen-1", "partial-permute-1", "partial-permute-10",
    "partial-rolling-permute-10", "partial-rolling-listen-10", "partial-listen-10",
    "partial-average-10", "partial-rolling-listen-2", "partial-rolling-permute-2",
    "partial-listen-2", "partial-permute-2", "partial-average-1", "partial-rolling-listen-5",
    "partial-rolling-permute-5", "partial-listen-5", "partial-permute-5", "partial-average-2",
    "partial-average-5",
)  # fmt: skip
"""All of them, the most telling first."""
COLUMNS = ("task", "scheme", "judged_on", "lr", "seed", "accuracy", "bytes")
Row = dict[str, str]


class Study(NamedTuple):
    """The sweep of a task, and how far it is."""

    sweep: RecipeSweep
    sweeping: Sweeping


class TimeIsUp(Exception):
    """No run begins any more."""


def with_ways(name: str, overrides: Iterable[str]) -> Recipe:
    """A recipe of a periodic and a partial scheme, with each way of handing over in its place."""
    recipe, study = load(name, overrides), load(STUDY).schemes
    if recipe.name == STUDY:
        return recipe
    partial = recipe.schemes["partial"]
    ways = {
        scheme: {
            section: {**partial.get(section, {}), **study[scheme].get(section, {})}
            for section in {**partial, **study[scheme]}
        }
        for scheme in ORDER[1:]
    }
    return replace(recipe, schemes={"periodic": recipe.schemes["periodic"], **ways})


def swept(
    recipe: Recipe, rates: Sequence[float], seeds: int, out: Path, schemes: Sequence[str] = ORDER
) -> Study:
    """The sweep of a task; a folder that holds another one is refused."""
    sweep = RecipeSweep(
        name=recipe.name,
        recipe=recipe,
        schemes=tuple(schemes),
        axes=axes_of([f"training.lr={','.join(map(str, rates))}"]),
        seeds=seeds,
        first=recipe.config().training.seed,
        out=out,
    )
    sweep.check()
    sweep.check_same()
    return Study(sweep, Sweeping(sweep, Listed(sweep)))


class Worker:
    """Trains runs, and begins none after some seconds."""

    def __init__(self, data: Path | None, seconds: float) -> None:
        self._data, self._ends = data, time.monotonic() + seconds
        self._samples: dict[str, Dataset] = {}

    def __call__(self, entry: StartedRun, config: Config, label: str) -> None:
        """Train a run from where it was left; one that diverges is noted."""
        if time.monotonic() > self._ends:
            raise TimeIsUp
        folder = entry.folder
        if config.data.name not in self._samples:
            self._samples[config.data.name] = create("data", config.data, self._data)
        run = Run(
            config, self._samples[config.data.name], folder, resume=folder.exists, force=False
        )
        reached = "diverged"
        with suppress(Diverged):
            for _ in run.train(label, [], ""):
                pass
            reached = f"{100 * folder.summary()['accuracy']:.2f} %"
        print(f"{label}: {reached}", flush=True)


def work(study: Study, train: Worker) -> None:
    """Work a sweep off, as far as time allows, and say what is to be doubted."""
    study.sweep.write()
    study.sweeping.work(lambda task: train(task.entry, study.sweep.config(task), task.label))
    for sentence in (*said(tuned(study.sweeping)), *lost(study.sweeping)):
        print(sentence)


def rows(name: str, study: Study) -> Iterator[Row]:
    """What is known of each run of a sweep."""
    for scheme in study.sweep.schemes:
        for one in study.sweeping.search.tried(scheme):
            for entry in one.trial.entries:
                yield from row(name, entry, _rate(one.trial.point), "validation")
        chosen = study.sweeping.chosen(scheme)
        for entry in study.sweeping.tests(scheme) if chosen else ():
            yield from row(name, entry, _rate(chosen.trial.point) if chosen else 0.0, "test")


def _rate(point: Point) -> float:
    return float(dict(point)["training.lr"])


def row(name: str, entry: StartedRun, rate: float, judged_on: str) -> Iterator[Row]:
    """A run that is over; without an accuracy if it diverged."""
    found = outcome(entry.folder)
    if found is None:
        return
    values = (
        name, entry.scheme, judged_on, f"{rate:g}", str(entry.seed),
        "" if found.value is None else f"{100 * found.value:.2f}", str(found.row.get("bytes", "")),
    )  # fmt: skip
    yield dict(zip(COLUMNS, values, strict=True))


def write(found: Iterable[Row], path: Path) -> None:
    """A line for each run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        lines.writeheader()
        lines.writerows(found)


def read(path: Path) -> list[Row]:
    """The lines of such a file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(found: Sequence[Row]) -> list[str]:
    """A line for each scheme that was tested: its rate, accuracy, difference and traffic."""
    test = [one for one in found if one["judged_on"] == "test"]
    schemes = dict.fromkeys(one["scheme"] for one in test)
    results = [
        _result(scheme, [one for one in test if one["scheme"] == scheme]) for scheme in schemes
    ]
    metric = main_metric([{"accuracy": 0.0}])
    assert metric is not None
    apart = {one.scheme: one for one in compared(results, metric)}
    return [_line(result, test, apart[result.scheme].cell if result.scheme in apart else "–")
            for result in results]  # fmt: skip


WAYS = {
    "permute": "models, all at once", "rolling-permute": "models, in turn",
    "average": "their average, all at once", "listen": "what was heard, all at once",
    "rolling-listen": "what was heard, in turn",
}  # fmt: skip


def crossed(found: Sequence[Row]) -> list[str]:
    """The same by what newcomers begin with and for how many cycles they stay, as Markdown."""
    cells = {}
    for line in table(found):
        scheme, _, accuracy, apart, sent = line.strip("| ").split(" | ")
        cells[scheme] = f"{accuracy}<br>{apart}<br>{sent} MB"
    lines = ["| newcomers begin with | stay a cycle | 2 cycles | 5 | 10 |", "|---|---|---|---|---|"]
    for way, what in WAYS.items():
        own = [cells.get(f"partial-{way}-{stay}", "") for stay in (1, 2, 5, 10)]
        lines.append(f"| {what} | {' | '.join(own)} |")
    return lines


def _result(scheme: str, runs: Sequence[Mapping[str, str]]) -> Result:
    ended = [one for one in runs if one["accuracy"]]
    summaries = tuple({"accuracy": float(one["accuracy"]) / 100} for one in ended)
    return Result(scheme, summaries, tuple(int(one["seed"]) for one in ended))


def _line(result: Result, test: Sequence[Row], apart: str) -> str:
    runs = [one for one in test if one["scheme"] == result.scheme]
    values, diverged = result.values("accuracy", 100), sum(not one["accuracy"] for one in runs)
    accuracy = number(mean(values), ".2f") if values else "–"
    if len(values) > 1:
        accuracy += f" ± {stdev(values):.2f}"
    if diverged:
        accuracy += f" ({diverged} of {len(runs)} seeds diverged)"
    sent = next((f"{int(one['bytes']) / 1e6:.0f}" for one in runs if one["bytes"]), "–")
    return f"| {result.scheme} | {runs[0]['lr']} | {accuracy} | {apart} | {sent} |"
