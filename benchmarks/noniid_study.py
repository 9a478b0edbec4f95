"""Uneven data with few active workers: which rate for whom, who hands what over, what is uneven.

    python benchmarks/noniid_study.py --data data --out noniid --known results/noniid --seconds 500

runs what is neither in `noniid` nor in `known`, the most important first, and begins no run after
these seconds. Start it several times at once and they share the runs. Rates are chosen by one seed
on samples held out of the training set, then judged on the test set by seeds that took no part.
`noniid/rows.csv` has a line for each run; `noniid/RUN` holds what a run leaves.
"""

import argparse
import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partavg.comparison import configured
from partavg.config import create
from partavg.config_toml import assignment
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder
from partavg.recipe import load
from partavg.recipe_run import Run
from partavg.session import Diverged

Settings = dict[str, Any]
RATES = (0.1, 0.2, 0.4)
CHOSEN_BY, JUDGED_BY = 0, (3, 4, 5)  # seeds; 0, 1 and 2 were seen on the test set before
HELD_OUT = 0.1
CELL = "table3/cifar10-alpha0.1-active25"
QUICK = {
    "checkpoints.every": 0,
    "checkpoints.final": False,
    "metrics.discrepancy_every": 0,
    "metrics.evaluate_every": 2500,
}


def listening(every: int) -> Settings:
    """Those who become active start from the averages that everybody heard."""
    return {"participation.redistribution": "listen", "participation.every": every}


METHODS: dict[str, tuple[str, Settings]] = {
    "periodic": ("periodic", {}),
    "partial-listen11": ("partial", listening(11)),
    "partial-permute110": ("partial", {}),
    "partial-listen110": ("partial", listening(110)),
    "partial-listen22": ("partial", listening(22)),
}
"""A scheme of the recipe, and what is changed in it."""


@dataclass(frozen=True)
class Task:
    """One run: its folder says what it is."""

    group: str
    recipe: str
    method: str
    scheme: str
    settings: tuple[tuple[str, Any], ...]
    seed: int

    @property
    def folder(self) -> str:
        """Where it is kept, below the folder of all runs."""
        return f"{self.group}-{self.method}-seed{self.seed}"


def task(group: str, recipe: str, method: str, settings: Settings, seed: int) -> Task:
    """A run of a method in a cell of the paper's tables."""
    scheme, own = METHODS.get(method, (method, {}))
    return Task(group, recipe, method, scheme, tuple({**own, **settings}.items()), seed)


class Runs:
    """What was run: folders with summaries."""

    def __init__(self, out: Path, known: Path | None) -> None:
        self.out = out
        self._folders = [out, *([known] if known else [])]

    def accuracy(self, wanted: Task) -> float | None:
        """What a finished run reached; one that diverged reached nothing."""
        for folder in self._folders:
            path = folder / wanted.folder / "summary.json"
            if path.exists():
                return float(json.loads(path.read_text()).get("accuracy") or 0)
        return None

    def claim(self, wanted: Task) -> bool:
        """Whether nobody ran it or is running it: then it is ours."""
        if self.accuracy(wanted) is not None:
            return False
        try:
            (self.out / f"{wanted.folder}.claimed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def rate(self, method: str) -> float | None:
        """The one with the best accuracy on held-out samples, once all were tried."""
        found = {rate: self.accuracy(tuning(method, rate)) for rate in RATES}
        if any(accuracy is None for accuracy in found.values()):
            return None
        return max(RATES, key=lambda rate: found[rate] or 0)


def tuning(method: str, rate: float) -> Task:
    """One of the rates of a method, on held-out samples."""
    settings = {"training.lr": rate, "training.validation": HELD_OUT}
    return task(f"tuning-lr{rate:g}", CELL, method, settings, CHOSEN_BY)


def judging(runs: Runs, seeds: tuple[int, ...]) -> Iterator[Task]:
    """Each method with the rate that was chosen, on the test set."""
    for seed in seeds:
        for method in METHODS:
            if rate := runs.rate(method):
                yield task("judging", CELL, method, {"training.lr": rate}, seed)


def permuted(alpha: str, active: int, seed: int) -> Iterator[Task]:
    """A cell of table 3 with workers of uneven sizes and even labels."""
    for scheme in ("periodic", "partial"):
        recipe = f"table3/cifar10-alpha{alpha}-active{active}"
        group = f"permuted-alpha{alpha}-active{active}"
        yield task(group, recipe, scheme, {"split.labels": "permuted"}, seed)


def plan(runs: Runs) -> Iterator[Task]:
    """What is to be run, the most important first."""
    *first, last = METHODS
    for method in first:
        yield from (tuning(method, rate) for rate in RATES)
    yield from permuted("0.1", 25, 0)
    yield from judging(runs, JUDGED_BY)
    for seed in (1, 2):
        yield from permuted("0.1", 25, seed)
    yield from (tuning(last, rate) for rate in RATES)
    for active in (25, 50, 100):
        for alpha in ("0.5", "1", "0.1"):
            yield from permuted(alpha, active, 0)


def train(wanted: Task, samples: Dataset, out: Path, trial: Settings) -> dict[str, Any]:
    """Train once, and give the summary; that of a run that diverged says so."""
    settings = {**QUICK, **dict(wanted.settings), "training.seed": wanted.seed, **trial}
    recipe = load(wanted.recipe, [assignment(key, value) for key, value in settings.items()])
    folder = RunFolder(out / wanted.folder)
    config = configured(recipe, wanted.scheme)
    session = Run(config, samples, folder, resume=False, force=True)
    try:
        for _ in session.train(wanted.folder, [], ""):
            pass
    except Diverged as error:
        folder.summary_path.write_text(json.dumps({"diverged": str(error)}))
    return dict(json.loads(folder.summary_path.read_text()))


def line(wanted: Task, summary: dict[str, Any]) -> str:
    """A line of rows.csv."""
    cells = [wanted.group, wanted.method, wanted.recipe, wanted.seed]
    cells += [json.dumps(dict(wanted.settings))]
    cells += [summary.get(key, "") for key in ("accuracy", "train_loss", "bytes", "seconds")]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def main() -> None:
    """Run what the time allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of datasets")
    parser.add_argument("--out", type=Path, default=Path("noniid"))
    parser.add_argument("--known", type=Path, help="runs that need not be run again")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", default="", help="runs that begin so, by ,")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    began, runs = time.perf_counter(), Runs(given.out, given.known)
    samples: Dataset = create("data", load(CELL).config().data, given.data)
    trial = {key: json.loads(value) for key, value in (one.split("=", 1) for one in given.set)}
    while time.perf_counter() - began < given.seconds:
        asked = (one for one in plan(runs) if one.folder.startswith(tuple(given.only.split(","))))
        wanted = next((one for one in asked if runs.claim(one)), None)
        if wanted is None:
            break
        summary = train(wanted, samples, given.out, trial)
        with (given.out / "rows.csv").open("a") as file:
            file.write(line(wanted, summary))
        took, reached = time.perf_counter() - began, summary.get("accuracy", "diverged")
        print(f"{took:5.0f} s  {wanted.folder}  {reached}", flush=True)


if __name__ == "__main__":
    main()
