"""What is left to run of the paper's tables, the most telling first.

    python benchmarks/paper_study.py --list
    python benchmarks/paper_study.py --data data --out paper --seconds 540 --rows rows.csv

runs cells at the recipe's rate with three seeds, and tuned ones: there each method has its own
rate, chosen by one seed on samples held out of the training set, and is then judged on the test set
by three others. Start it several times at once and they share the runs; stopped or killed, it goes
on where it was, with the same `--out`. Runs that are in results/ are not repeated. `--only
permuted,table3/femnist` takes cells that begin so; `--lists FOLDER` adds those with the first
author's lists of samples, `alpha0.1-lists-*.npz` in that folder. `--rows FILE` writes a line for
each run, `--show FILE` prints the tables of such a file.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import few_active

from partavg.comparison import PlannedRun, planned_runs, schemes_of
from partavg.recipe import load, names
from partavg.sweeps.claim import claim
from partavg.sweeps.outcome import outcome

RESULTS = Path(__file__).parents[1] / "results"
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
CHOSEN_BY, SEEDS = 2, 3  # one seed chooses, three judge: 0 to 2 were seen on the test set
QUICK = ("checkpoints.every=0", "checkpoints.final=false", "metrics.discrepancy_every=0")
NON_IID = tuple((alpha, active) for alpha in ("0.1", "0.5", "1") for active in (25, 50, 100))
PERMUTED = "split.labels=permuted"


class Cell(NamedTuple):
    """A recipe, and what is changed in it."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    seeds: int = SEEDS
    tuned: bool = False

    def runs(self, settings: tuple[str, ...], out: Path) -> list[PlannedRun]:
        """Its runs at the recipe's own rate, without those that results/ has."""
        recipe = load(self.recipe, (*settings, *self.settings))
        schemes = self.schemes or schemes_of(recipe)
        return [
            run
            for run in planned_runs(recipe, schemes, self.seeds, out / self.name)
            if not (RESULTS / self.name / run.folder.path.name).exists()
        ]

    def sweep(self, settings: tuple[str, ...], out: Path) -> few_active.Study:
        """Its runs where each scheme has its own rate."""
        settings = (f"training.seed={CHOSEN_BY}", *settings, *self.settings)
        recipe = few_active.with_ways(self.recipe, settings)
        schemes = self.schemes or few_active.ORDER
        return few_active.swept(recipe, RATES, self.seeds, out / self.name, schemes)


def cells(lists: Path | None) -> Iterator[Cell]:
    """All there are, the most telling first."""
    pair = ("periodic", "partial")
    noniid = {f"alpha{alpha}-active{active}": alpha for alpha, active in NON_IID}
    for cell in noniid:
        yield Cell(f"permuted/{cell}", f"table3/cifar10-{cell}", (PERMUTED,), pair)
    few = [f"alpha0.1-active{active}" for active in (25, 50)]
    for cell in few:
        yield Cell(f"handed-over/{cell}", f"table3/cifar10-{cell}", tuned=True)
    for table in ("table3", "table1", "table2", "table4", "table5"):
        for name in names():
            if name.startswith(f"{table}/") and not {"svhn", "cifar100"} & _words(name):
                yield Cell(name, name)
    for length in (100, 200, 400):
        yield Cell(f"imdb/length{length}", "study/imdb", (f"data.length={length}",), seeds=1)
    for name in names():
        if name.startswith("table1/") and "cifar100" in _words(name):
            yield Cell(name, name, seeds=1)
    for cell in noniid:
        yield Cell(f"frozen/{cell}", f"table3/cifar10-{cell}", ("averaging.buffers=frozen",), pair)
    for order in ("file", "tfds") if lists else ():
        saved = ("split.name=saved", f"split.path={lists}/alpha0.1-lists-{order}-order.npz")
        for cell in (cell for cell, alpha in noniid.items() if alpha == "0.1"):
            yield Cell(f"lists-{order}/{cell}", f"table3/cifar10-{cell}", saved, pair)
    for cell in noniid:
        table3, ways = f"table3/cifar10-{cell}", ("periodic", "partial-permute-10")
        yield Cell(f"tuned-permuted/{cell}", table3, (PERMUTED,), ways, tuned=True)
        if cell not in few:
            yield Cell(f"tuned/{cell}", table3, (), ways, tuned=True)
    for name in names():
        if name.startswith("table6/"):
            yield Cell(name, name)


def _words(name: str) -> set[str]:
    return set(name.partition("/")[2].split("-"))


class Study:
    """Runs of some cells, below one folder."""

    def __init__(self, out: Path, settings: list[str], chosen: list[Cell]) -> None:
        self._out, self._settings, self._cells = out, (*QUICK, *settings), chosen

    def work(self, train: few_active.Worker) -> None:
        """Run what nobody ran and nobody else is at work on."""
        for cell in self._cells:
            if cell.tuned:
                few_active.work(cell.sweep(self._settings, self._out), train)
                continue
            for run in cell.runs(self._settings, self._out):
                with claim(run.folder.path, self._out / "locks" / cell.name) as ours:
                    if ours and outcome(run.folder) is None:
                        train(run, run.config, f"{cell.name} {run.scheme} seed {run.seed}")

    def rows(self) -> Iterator[few_active.Row]:
        """A line for each run that is over."""
        for cell in self._cells:
            if cell.tuned:
                yield from few_active.rows(cell.name, cell.sweep(self._settings, self._out))
                continue
            for run in cell.runs(self._settings, self._out):
                yield from few_active.row(cell.name, run, run.config.training.lr, "test")


def main() -> None:
    """Run what the time allows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder of datasets")
    parser.add_argument("--out", type=Path, default=Path("paper"))
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", default="", help="cells that begin so, by ,")
    parser.add_argument("--lists", type=Path, help="the folder of the first author's lists")
    parser.add_argument("--list", action="store_true", help="say which cells there are, and end")
    parser.add_argument("--rows", type=Path, help="write what is known of each run")
    parser.add_argument("--show", type=Path, help="print the tables of such a file, and end")
    given = parser.parse_args()
    if given.show:
        found = few_active.read(given.show)
        for name in dict.fromkeys(row["task"] for row in found):
            own = few_active.table([row for row in found if row["task"] == name])
            print("\n".join([name, *own, ""]))
        return
    begins = tuple(given.only.split(","))
    chosen = [cell for cell in cells(given.lists) if cell.name.startswith(begins)]
    if not chosen:
        parser.error(f"no cell begins with {given.only}: --list says which there are")
    if given.list:
        for cell in chosen:
            print(f"{cell.name:34} {cell.recipe} {' '.join(cell.settings)}")
        return
    study = Study(given.out, given.set, chosen)
    try:
        study.work(few_active.Worker(given.data, given.seconds))
    except few_active.TimeIsUp:
        print("time is up")
    if given.rows:
        few_active.write(study.rows(), given.rows)


if __name__ == "__main__":
    main()
