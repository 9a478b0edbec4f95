"""Uneven data with few active workers: which rate for whom, who hands what over, what is uneven.

    python benchmarks/noniid_study.py --data data --out noniid --seconds 500

sweeps table 3's CIFAR-10 with α = 0.1 and 25 and 50 % active workers: periodic averaging, and
partial averaging with each way of handing over, all at once or in turn, after 1, 2, 5 or 10 cycles
(see `few_active.py`). Each has its own rate, chosen by one seed on samples held out of the training
set, then judged on the test set by seeds that took no part. Between them are cells with uneven
sizes and even labels, at the recipe's rate. Start it several times at once and they share the runs;
stopped or killed, it goes on where it was, with the same `--out`. `--rows FILE` writes a line for
each run, `--show FILE` prints the tables of one, `--only` takes some parts, like `active25`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import few_active

from partavg.comparison import PlannedRun, planned_runs
from partavg.recipe import load
from partavg.sweeps.claim import claim
from partavg.sweeps.outcome import outcome

RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
CHOSEN_BY, JUDGED_BY = 2, 3  # a seed, and how many after it: 0, 1 and 2 were seen on the test set
CELLS = {active: f"table3/cifar10-alpha0.1-active{active}" for active in (25, 50)}
QUICK = (
    "checkpoints.every=0",
    "checkpoints.final=false",
    "metrics.discrepancy_every=0",
    "metrics.evaluate_every=2500",
)


class Study:
    """All runs there are, below one folder."""

    def __init__(self, out: Path, settings: list[str], only: tuple[str, ...]) -> None:
        self._out, self._settings, self._only = out, (*QUICK, *settings), only

    def parts(self) -> list[str]:
        """What is run, the most important first."""
        permuted = [f"permuted-{alpha}" for alpha in ("0.1", "0.5", "1")]
        return [part for part in ("active25", *permuted, "active50") if part.startswith(self._only)]

    def sweep(self, part: str) -> few_active.Study:
        """A cell in which each scheme has its own rate."""
        name = CELLS[int(part.removeprefix("active"))]
        recipe = few_active.with_ways(name, (f"training.seed={CHOSEN_BY}", *self._settings))
        return few_active.swept(recipe, RATES, JUDGED_BY, self._out / part)

    def permuted(self, part: str) -> list[PlannedRun]:
        """Cells with workers of uneven sizes and even labels, at the recipe's rate."""
        alpha = part.removeprefix("permuted-")
        settings = ("split.labels=permuted", *self._settings)
        return [
            run
            for active in (25, 50, 100)
            for run in planned_runs(
                load(f"table3/cifar10-alpha{alpha}-active{active}", settings),
                ("periodic", "partial"),
                3 if (alpha, active) == ("0.1", 25) else 1,
                self._out / part / f"active{active}",
            )
        ]

    def work(self, train: few_active.Worker) -> None:
        """Run what nobody ran and nobody else is at work on."""
        for part in self.parts():
            if part.startswith("active"):
                few_active.work(self.sweep(part), train)
                continue
            for run in self.permuted(part):
                with claim(run.folder.path, self._out / "locks" / part) as ours:
                    if ours and outcome(run.folder) is None:
                        train(run, run.config, f"{part} {run.folder.path.parent.name} {run.scheme}")

    def rows(self) -> Iterator[few_active.Row]:
        """A line for each run that is over."""
        for part in self.parts():
            if part.startswith("active"):
                yield from few_active.rows(part, self.sweep(part))
                continue
            for run in self.permuted(part):
                yield from few_active.row(
                    f"{part}-{run.folder.path.parent.name}", run, run.config.training.lr, "test"
                )


def main() -> None:
    """Run what the time allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder of datasets")
    parser.add_argument("--out", type=Path, default=Path("noniid"))
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", default="", help="parts that begin so, by ,")
    parser.add_argument("--rows", type=Path, help="write what is known of each run")
    parser.add_argument("--show", type=Path, help="print the tables of such a file, and end")
    given = parser.parse_args()
    if given.show:
        found = few_active.read(given.show)
        for name in dict.fromkeys(row["task"] for row in found):
            own = few_active.table([row for row in found if row["task"] == name])
            print("\n".join([name, *own, ""]))
        return
    study = Study(given.out, given.set, tuple(given.only.split(",")))
    try:
        study.work(few_active.Worker(given.data, given.seconds))
    except few_active.TimeIsUp:
        print("time is up")
    if given.rows:
        few_active.write(study.rows(), given.rows)


if __name__ == "__main__":
    main()
