"""Accuracy against ε: periodic and partial averaging at equal privacy and equal messages.

    python benchmarks/privacy_study.py results/privacy

200 clients with two classes of Fashion-MNIST each (the subset that comes with the package, shrunk
to 7 × 7) train a small network for 20 cycles of 8 local steps. For every share of clients, ε and
scheme, learning rate and clip are chosen by one seed on validation samples; then ten seeds that
took no part in the choice are judged on test samples. Runs are lines of `results/privacy/runs.csv`:
what is there already is not run again, so it can be stopped at any time. `--show` prints the tables
of what there is.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import nn
from torch.nn import functional as F

import partavg
from partavg import Participation, Privacy, Schedule, Simulation, by_label
from partavg.student import quantile

CLIENTS, CYCLES, INTERVAL, DELTA = 200, 20, 8, 1e-5
SCHEMES = {
    "periodic": Schedule(INTERVAL),
    "partial": Schedule.partial(INTERVAL),
    "partial, late": Schedule(INTERVAL, offsets=(5, 6, 7, 8)),
}
FRACTIONS, EPSILONS = (1.0, 0.2), (None, 8.0, 4.0, 2.0)
RATES, CLIPS = (0.03, 0.1, 0.3, 1.0), (0.3, 1.0, 3.0, 10.0)
CHOSEN_BY, JUDGED_BY = 100, range(10)  # seeds


Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """What decides a run, but for its seed."""

    fraction: float
    epsilon: float | None
    scheme: str
    lr: float
    clip: float


@dataclass(frozen=True)
class Row:
    """A run: its setting, its seed, on which samples it was judged, and what came out."""

    fraction: float
    epsilon: float | None
    scheme: str
    lr: float
    clip: float
    seed: int
    judged_on: str
    noise: float
    spent: float | None
    sent: int
    accuracy: float


class Rows:
    """What was run, in a file that every run adds a line to."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "runs.csv"
        self._names = [field.name for field in fields(Row)]
        self.all: list[Row] = []
        if self._path.exists():
            with self._path.open() as file:
                self.all = [_read(line) for line in csv.DictReader(file)]

    def add(self, row: Row) -> None:
        """Write a line."""
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        fresh = not self._path.exists()
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(self._names)
            writer.writerow(["" if value is None else value for value in astuple(row)])
        self.all.append(row)

    def of(self, setting: Setting) -> dict[int, Row]:
        """The runs of a setting by their seeds."""
        return {row.seed: row for row in self.all if astuple(row)[:5] == astuple(setting)}

    def chosen(self, fraction: float, epsilon: float | None, scheme: str) -> Setting | None:
        """The setting that is best on validation samples."""
        tried = [
            row
            for row in self.all
            if (row.fraction, row.epsilon, row.scheme) == (fraction, epsilon, scheme)
            and row.seed == CHOSEN_BY
        ]
        if not tried:
            return None
        best = max(tried, key=lambda row: row.accuracy)
        return Setting(fraction, epsilon, scheme, best.lr, best.clip)

    def judged(self, fraction: float, epsilon: float | None, scheme: str) -> dict[int, Row]:
        """Its runs with seeds that took no part in the choice."""
        best = self.chosen(fraction, epsilon, scheme)
        found = self.of(best) if best else {}
        return {seed: found[seed] for seed in JUDGED_BY if seed in found}


def _read(line: dict[str, str]) -> Row:
    def number(name: str) -> float | None:
        return float(line[name]) if line[name] else None

    return Row(
        float(line["fraction"]),
        number("epsilon"),
        line["scheme"],
        float(line["lr"]),
        float(line["clip"]),
        int(line["seed"]),
        line["judged_on"],
        float(line["noise"]),
        number("spent"),
        int(line["sent"]),
        float(line["accuracy"]),
    )


def trained(setting: Setting, seed: int, noise: float) -> Row:
    """Train once and judge what was released last."""
    train, validation, test = samples()
    on, judged = ("validation", validation) if seed == CHOSEN_BY else ("test", test)
    torch.manual_seed(seed)
    who = None
    if setting.fraction < 1:
        drawn = round(setting.fraction * CLIENTS)
        who = Participation(CLIENTS, drawn, INTERVAL, "released", seed)
    simulation = Simulation(
        nn.Sequential(nn.Linear(49, 24), nn.ReLU(), nn.Linear(24, 10)),
        F.cross_entropy,
        train,
        by_label(train[1], CLIENTS, seed, classes=2),
        schedule=SCHEMES[setting.scheme],
        lr=setting.lr,
        batch=10,
        participation=who,
        privacy=Privacy(clip=setting.clip, noise=noise, delta=DELTA),
        engine="vmapped",
        seed=seed,
    )
    for _ in simulation.train(until=CYCLES * INTERVAL):
        pass
    found = simulation.evaluate(judged).accuracy
    assert found is not None
    spent = simulation.spent().get("epsilon")
    sent = simulation.workers.params[0].nbytes * CYCLES
    return Row(
        **asdict(setting),
        seed=seed,
        judged_on=on,
        noise=noise,
        spent=spent and round(spent, 4),
        sent=sent,
        accuracy=round(100 * found, 2),
    )


@cache
def samples() -> tuple[Pair, Pair, Pair]:
    """Those to train on, to choose by and to judge by."""
    data = partavg.load_dataset("fashion_subset")
    inputs, labels, last = _seen(data.train.inputs), data.train.targets, data.test.targets
    assert isinstance(labels, torch.Tensor)
    assert isinstance(last, torch.Tensor)
    held = inputs[10000:], labels[10000:]
    return (inputs[:10000], labels[:10000]), held, (_seen(data.test.inputs), last)


def _seen(images: torch.Tensor) -> torch.Tensor:
    small = F.avg_pool2d(images.float() / 255, 4).flatten(1)
    return (small - 0.28) / 0.3


def work(rows: Rows) -> None:
    """All that is missing, choices before judgements."""
    for fraction, epsilon in product(FRACTIONS, EPSILONS):
        noise = 0.0
        if epsilon:
            noise = partavg.noise_for(epsilon, CYCLES, fraction=fraction, delta=DELTA)
        for scheme in SCHEMES:
            for lr, clip in product(RATES, CLIPS):
                _once(rows, Setting(fraction, epsilon, scheme, lr, clip), CHOSEN_BY, noise)
            best = rows.chosen(fraction, epsilon, scheme)
            assert best
            for seed in JUDGED_BY:
                _once(rows, best, seed, noise)


def _once(rows: Rows, setting: Setting, seed: int, noise: float) -> None:
    if seed not in rows.of(setting):
        rows.add(trained(setting, seed, noise))
        print(rows.all[-1], flush=True)


def half(values: list[float]) -> float:
    """Half a 95 % interval of the mean, Student's."""
    return quantile(0.95, len(values) - 1) * stdev(values) / sqrt(len(values))


def difference(ours: dict[int, Row], theirs: dict[int, Row]) -> tuple[float, float]:
    """The mean lead, seed by seed, and half its 95 % interval."""
    pairs = [ours[seed].accuracy - theirs[seed].accuracy for seed in ours if seed in theirs]
    return mean(pairs), half(pairs)


def table(rows: Rows, fraction: float) -> Iterator[str]:
    """What there is of a share of clients, as the page has it."""
    names = list(SCHEMES)
    leads = [f"{name} − periodic" for name in names[1:]]
    yield f"| ε | noise | {' | '.join(names + leads)} |"
    yield "|" + "---|" * (2 * len(names) + 1)
    for epsilon in EPSILONS:
        judged = {name: rows.judged(fraction, epsilon, name) for name in names}
        if any(len(some) < len(JUDGED_BY) for some in judged.values()):
            continue
        cells = []
        for some in judged.values():
            values = [row.accuracy for row in some.values()]
            cells.append(f"{mean(values):.1f} ± {half(values):.1f}")
        for name in names[1:]:
            lead, about = difference(judged[name], judged["periodic"])
            cells.append(f"{lead:+.1f} ± {about:.1f}")
        noise = next(iter(judged["periodic"].values())).noise
        yield f"| {epsilon or 'none'} | {noise:g} | {' | '.join(cells)} |"


def choices(rows: Rows) -> Iterator[str]:
    """What was chosen."""
    for fraction, epsilon, scheme in product(FRACTIONS, EPSILONS, SCHEMES):
        best = rows.chosen(fraction, epsilon, scheme)
        if best:
            yield f"{fraction} {epsilon} {scheme}: rate {best.lr}, clip {best.clip}"


def main() -> None:
    """Read the command line and work, or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    rows = Rows(given.folder)
    if not given.show:
        work(rows)
    for fraction in FRACTIONS:
        print(f"\n{fraction:g} of the clients")
        print("\n".join(table(rows, fraction)))
    print("\n" + "\n".join(choices(rows)))


if __name__ == "__main__":
    main()
