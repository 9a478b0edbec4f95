"""Accuracy against the fraction of attackers: each aggregate under each attack, two schemes.

    OMP_NUM_THREADS=1 nice python benchmarks/robust_study.py --out results/robust/rows.csv

runs what is not in the file yet, a line for each run; start it again to go on. The rate of each
scheme and aggregate is chosen by one seed without attackers, on samples held out of the training
set; other seeds are judged on the test set. `robust_tables.py` prints what docs/robust.md shows.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from partavg import build
from partavg.config import create
from partavg.config_toml import assignment
from partavg.data.dataset import Dataset
from partavg.recipe import load

RECIPE = "study/robust"
SCHEMES = {"periodic": 1, "partial": 20}
AGGREGATES = ("mean", "median", "trimmed", "norm_bound")
ATTACKS = {"sign_flip": 4.0, "little_is_enough": None, "label_flip": None}
"""Each with its scale, where it has one."""
FRACTIONS = (0.1, 0.2, 0.3, 0.4)
RATES = (0.00625, 0.0125, 0.025, 0.05, 0.1)
CHOSEN_BY, JUDGED_BY = 0, (1, 2, 3, 4, 5)  # seeds
HELD_OUT = 0.2
SLOWLY = tuple(
    (aggregate, "label_flip", f) for aggregate in ("mean", "norm_bound") for f in (0.3, 0.4)
)
"""Where schemes differ most: again at half the rate, which nobody chose."""


class Task(NamedTuple):
    """One run."""

    stage: str
    scheme: str
    aggregate: str
    attack: str
    fraction: float
    lr: float
    seed: int

    def settings(self) -> dict[str, object]:
        """What is changed in the recipe."""
        found: dict[str, object] = {
            "averaging.parts": SCHEMES[self.scheme],
            "aggregate.name": self.aggregate,
            "training.lr": self.lr,
            "training.seed": self.seed,
            "training.validation": HELD_OUT if self.stage == "tuning" else 0.0,
        }
        if self.fraction:
            found |= {"attack.name": self.attack, "attack.fraction": self.fraction}
            if (scale := ATTACKS[self.attack]) is not None:
                found["attack.scale"] = scale
        return found


Rows = Mapping[Task, float]
"""The accuracy of each run."""


def read(path: Path) -> dict[Task, float]:
    """All runs of a file."""
    if not path.exists():
        return {}
    with path.open() as file:
        return {
            Task(
                row["stage"],
                row["scheme"],
                row["aggregate"],
                row["attack"],
                float(row["fraction"]),
                float(row["lr"]),
                int(row["seed"]),
            ): float(row["accuracy"])
            for row in csv.DictReader(file)
        }


def tuning(scheme: str, aggregate: str) -> list[Task]:
    """The rates that are tried."""
    return [Task("tuning", scheme, aggregate, "none", 0.0, lr, CHOSEN_BY) for lr in RATES]


def rate(known: Rows, scheme: str, aggregate: str) -> float:
    """The one with the best accuracy on held-out samples; of two that are as good the larger."""
    return max(tuning(scheme, aggregate), key=lambda task: (known[task], task.lr)).lr


def judging(known: Rows) -> Iterator[Task]:
    """All runs on the test set, one seed after the other."""
    for seed in JUDGED_BY:
        for scheme in SCHEMES:
            for aggregate in AGGREGATES:
                lr = rate(known, scheme, aggregate)
                yield Task("judging", scheme, aggregate, "none", 0.0, lr, seed)
                for attack in ATTACKS:
                    for fraction in FRACTIONS:
                        yield Task("judging", scheme, aggregate, attack, fraction, lr, seed)


def slowly(known: Rows) -> Iterator[Task]:
    """Some runs again, at half the rate."""
    for seed in JUDGED_BY:
        for scheme in SCHEMES:
            for aggregate, attack, fraction in SLOWLY:
                lr = rate(known, scheme, aggregate) / 2
                yield Task("half rate", scheme, aggregate, attack, fraction, lr, seed)


def train(task: Task, full: Dataset, trial: Sequence[str]) -> float:
    """The accuracy of u_K."""
    settings = [assignment(key, value) for key, value in task.settings().items()] + [*trial]
    config = load(RECIPE, settings).config()
    made = build.simulation(config, full, torch.device("cpu"))
    for _ in made.train(build.steps(config, full)):
        pass
    judged = made.evaluate(build.scaled(config, full).test, ["accuracy"])
    return float(judged.metrics["accuracy"])


def run(path: Path, data: Path, trial: Sequence[str] = ()) -> None:
    """Run what is not in the file; a trial changes the recipe."""
    full: Dataset = create("data", load(RECIPE).config().data, data)
    known = read(path)
    path.parent.mkdir(parents=True, exist_ok=True)

    def add(task: Task) -> None:
        if task in known:
            return
        known[task] = train(task, full, trial)
        begun = path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not begun:
                writer.writerow([*Task._fields, "accuracy"])
            writer.writerow([*task, round(known[task], 6)])
        print(*task, f"{known[task]:.4f}", flush=True)

    for scheme in SCHEMES:
        for aggregate in AGGREGATES:
            for task in tuning(scheme, aggregate):
                add(task)
    for task in (*judging(known), *slowly(known)):
        add(task)


def main() -> None:
    """Run what was not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of datasets")
    parser.add_argument("--out", type=Path, default=Path("results/robust/rows.csv"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    run(given.out, given.data, given.set)


if __name__ == "__main__":
    main()
