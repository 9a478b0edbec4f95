"""Tables of docs/reproduce.md and docs/reproduce-details.md, and results.csv, made of results/.

    python tools/paper_tables.py          # writes them into the pages, between their marks
    python tools/paper_tables.py --check  # says which of them are not those of results/

A table stands between `<!-- table: name -->` and `<!-- end -->`. Differences are paired by seed;
their 95 % intervals are Student's.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from partavg import recipe as recipes
from partavg.comparison import Result
from partavg.metrics.table import METRICS
from partavg.pairs import NOT_EVIDENCE, Difference

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = ("docs/reproduce.md", "docs/reproduce-details.md")
MARKS = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ACCURACY = METRICS["accuracy"]
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "imdb": "IMDB",
        "fashion_mnist": "Fashion-MNIST", "femnist": "FEMNIST"}  # fmt: skip
PARTS = {"interval": "τ = {}", "alpha": "α = {}", "active": "{} % active", "epochs": "{} epochs"}
ELSEWHERE = {
    ("table3/cifar10-alpha0.1-active25", "partial"): "partial-best-local-seed0",
    ("table4/cifar10-alpha0.1-active25", "partial"): "partial-averaged-when-redrawn-seed0",
}
"""Seed 0 of these cells is a run of the ablation."""
RUN_ELSEWHERE = {"table2/cifar10-epochs300", "table4/cifar10-alpha0.1-active25"}
"""The first is a cell of table 1, too."""
Row = Sequence[str]


PAIR = ("periodic", "partial")


def results(folder: str, scheme: str) -> Result:
    """The seeds of a scheme that came back."""
    found = {
        int(path.name.rpartition("-seed")[2]): path
        for path in (RESULTS / folder).glob(f"{scheme}-seed*")
    }
    if own := ELSEWHERE.get((folder, scheme)):
        found[0] = RESULTS / "ablation" / own
    seeds = sorted(seed for seed, path in found.items() if (path / "summary.json").exists())
    known = (json.loads((found[seed] / "summary.json").read_text()) for seed in seeds)
    return Result(scheme, tuple(known), tuple(seeds))


def paper(name: str) -> dict[str, float]:
    """What the paper reports of each scheme."""
    about = recipes.load(name).paper
    return {scheme: value for scheme, (value, _) in (about.reported if about else {}).items()}


def label(name: str) -> str:
    """A recipe in words: CIFAR-10, α = 0.1, 25 % active."""
    data, *rest = name.partition("/")[2].replace("one-worker", "one worker").split("-")
    said = []
    for word in rest:
        kind = next((kind for kind in PARTS if word.startswith(kind)), None)
        said.append(PARTS[kind].format(word.removeprefix(kind)) if kind else word)
    return ", ".join([DATA.get(data, data), *said])


def cell(reported: float | None, found: Result, lost: int = 0) -> str:
    """Paper / here, where so many more runs diverged."""
    ended = len(found.summaries)
    here = found.text("accuracy", ".2f", 100) if ended else "diverged" if lost else "not run"
    if ended and lost:
        here += f" ({lost} of {ended + lost} seeds diverged)"
    return f"{'–' if reported is None else f'{reported:.2f}'} / {here}"


def signed(value: float) -> str:
    """With a sign that stands out."""
    return f"{value:+.2f}".replace("-", "−")


def difference(ours: Result, theirs: Result) -> tuple[str, str]:
    """The difference with its interval, and how many seeds both have."""
    found = Difference.of(ours, theirs, ACCURACY)
    if not found.seeds:
        return "–", "–"
    shown = found.cell
    if found.seeds == 2:
        shown += f" ({NOT_EVIDENCE[2]})"
    tie = found.interval and found.interval[0] <= 0 <= found.interval[1]
    return (f"{shown} tie" if tie else shown), str(found.seeds)


def begun(name: str, scheme: str = "*") -> list[Path]:
    """The runs of a recipe that came back, also those that diverged."""
    return [path.parent for path in (RESULTS / name).glob(f"{scheme}-seed*/config.toml")]


def diverged(name: str, scheme: str) -> int:
    """How many of them have no end."""
    return sum(not (path / "summary.json").exists() for path in begun(name, scheme))


BESIDE = ("cell", "periodic: paper / here", "partial: paper / here",
          "partial − periodic: paper", "here, 95 % interval", "n")  # fmt: skip


def beside(said: str, reported: dict[str, float], folder: str) -> Row:
    """A cell of the paper and its runs here."""
    found = {scheme: results(folder, scheme) for scheme in PAIR}
    gap, seeds = difference(found["partial"], found["periodic"])
    return (
        said,
        *(cell(reported[scheme], found[scheme], diverged(folder, scheme)) for scheme in PAIR),
        signed(reported["partial"] - reported["periodic"]),
        gap,
        seeds,
    )


def cells() -> Iterator[Row]:
    """Partial against periodic averaging in every cell that was run."""
    yield "table", *BESIDE
    for name in recipes.names():
        reported = paper(name) if name.startswith("table") else {}
        if {"periodic", "partial"} <= reported.keys() and begun(name):
            yield name[5:6], *beside(label(name), reported, name)


def designs() -> Iterator[Row]:
    """Table 4: models handed over against their average."""
    yield ("cell", "average handed over (design 1): paper / here",
           "models handed over (design 2): paper / here", "design 2 − design 1: paper",
           "here", "n")  # fmt: skip
    for alpha in ("1", "0.5", "0.1"):
        name = f"cifar10-alpha{alpha}-active25"
        folder = f"table4/{name}"
        one = results(folder, "partial")
        two = results(f"table3/{name}", "partial")
        first, second = paper(folder)["partial"], paper(f"table3/{name}")["partial"]
        gap, seeds = difference(two, one)
        yield label(folder), cell(first, one), cell(second, two), signed(second - first), gap, seeds


def partitions() -> Iterator[Row]:
    """Table 5: whole layers against channels."""
    yield "cell", "by layer: paper / here", "by channel: paper / here", "layer − channel: here", "n"
    for interval in (2, 4, 8):
        name = f"cifar10-interval{interval}"
        layer, channel = results(f"table5/{name}", "partial"), results(f"table1/{name}", "partial")
        about = recipes.load(f"table5/{name}").paper
        assert about
        reported = float(about.note.rpartition(" ")[2]) if about.note else None
        gap, seeds = difference(layer, channel)
        yield (label(f"table5/{name}"), cell(about.reported["partial"][0], layer),
               cell(reported, channel), gap, seeds)  # fmt: skip


CHANGES = {
    "none, seed 0": "as the recipe",
    "the best local model instead of u_K": "local models evaluated",
    "BatchNorm's statistics recomputed on mixed data for evaluation": "statistics recomputed",
    "BatchNorm's statistics averaged whole after every iteration": "BatchNorm's statistics av",
    "everything as in the first author's later code: the next four together":
        "all of the first author's: l2",
    "l2 doubled and on kernels only": "l2 doubled and on kernels only",
    "BatchNorm's ε 1e-3 and momentum 0.01": "BatchNorm with eps",
    "zero gamma": "zero gamma",
    "per-pixel normalization": "per-pixel normalization",
    "momentum averaged with the parameters": "momentum averaged",
    "momentum reset at every averaging": "momentum reset",
    "active workers redrawn in every round, not in every tenth": "active workers redrawn",
    "models averaged when workers are redrawn (design 1)": "models averaged when",
    "plain Dirichlet split (no cap on a worker's samples)": "plain (unbalanced)",
    "GroupNorm with 8 groups instead of BatchNorm": "GroupNorm",
    "an IID split instead of Dirichlet 0.1": "IID split",
}  # fmt: skip
"""The rows of the ablation, and how their changes begin in ablation.csv."""


def ablation() -> Iterator[Row]:
    """One cell, changed in one respect at a time."""
    yield "change", *PAIR
    name = "table3/cifar10-alpha0.1-active25"
    usual = [results(name, scheme).text("accuracy", ".2f", 100) for scheme in PAIR]
    yield "none: the recipe, three seeds", *usual
    known = list(rows("ablation/ablation.csv"))
    for said, begins in CHANGES.items():
        found = {}
        for row in known:
            change = row["change"]
            local = re.search(r"local models evaluated: best ([\d.]+), mean ([\d.]+)", change)
            if begins == "local models evaluated" and local:
                found[row["scheme"]] = f"{local[1]} (mean of local models: {local[2]})"
            elif change == begins or (begins != "as the recipe" and change.startswith(begins)):
                found.setdefault(row["scheme"], row["accuracy"])
        yield said, *(found.get(scheme, "") for scheme in PAIR)
    yield "the paper, α = 0.1", *(f"{paper(name)[scheme]:.2f}" for scheme in PAIR)


def milder() -> Iterator[Row]:
    """The same switches where labels are less uneven."""
    yield "", "periodic", "partial"
    known = list(rows("ablation/ablation.csv"))
    for alpha in ("1", "0.5"):
        name = f"table3/cifar10-alpha{alpha}-active25"
        own = {
            row["scheme"]: row["accuracy"]
            for row in known
            if row["change"] == f"all of the first author's, alpha {alpha}"
        }
        yield (
            f"α = {alpha}, as in the first author's later code, rate 0.2",
            *(own[scheme] for scheme in PAIR),
        )
        ours = [results(name, scheme).text("accuracy", ".2f", 100) for scheme in PAIR]
        yield f"α = {alpha}, the recipe, three seeds, rate 0.4", *ours
        yield f"the paper, α = {alpha}", *(f"{paper(name)[scheme]:.2f}" for scheme in PAIR)


METHODS = {
    "periodic": "periodic",
    "partial-permute110": "partial, models handed over every 110 steps",
    "partial-listen110": "partial, `listen`, redrawn every 110 steps",
    "partial-listen11": "partial, `listen`, redrawn every 11 steps",
}


def rates() -> Iterator[Row]:
    """Each method with its own rate, chosen by one seed on validation samples."""
    yield "method", "chosen rate", "on validation samples", "test, seeds 3 and 4"
    for method, said in METHODS.items():
        own = [row for row in rows("noniid/runs.csv") if row["method"] == method]
        tuned = {row["lr"]: row["accuracy"] for row in own if row["group"] == "tuning"}
        rate = max(tuned, key=lambda lr: float(tuned[lr]))
        judged = {row["seed"]: row for row in own if row["group"] == "judging"}
        assert len(tuned) == 3
        assert all(row["lr"] == rate for row in judged.values())
        reached = ", ".join(row["accuracy"] for row in judged.values())
        alone = f" (seed {next(iter(judged))} only)" if len(judged) == 1 else ""
        yield said, rate, tuned[rate], reached + alone


def permuted() -> Iterator[Row]:
    """Uneven sizes with even labels."""
    yield BESIDE
    for alpha, active in product(("0.1", "0.5", "1"), (25, 50, 100)):
        own = f"alpha{alpha}-active{active}"
        name = f"table3/cifar10-{own}"
        yield beside(f"α = {alpha}, {active} % active", paper(name), f"permuted/{own}")
    before = {
        row["method"]: row["accuracy"]
        for row in rows("noniid/runs.csv")
        if row["group"] == "permuted-alpha0.1-active25"
    }
    gap = signed(float(before["partial"]) - float(before["periodic"]))
    reached = (f"– / {before[scheme]}" for scheme in PAIR)
    yield "the first cell, seed 0 in earlier runs, not counted", *reached, "", gap, "1"


AS_KERAS = "Keras's start of parameters, and dropout of whole channels"


def imdb() -> Iterator[Row]:
    """What may explain the distance of IMDB's cells, one run each."""
    name = "table1/imdb-interval4"
    yield "change", *PAIR
    yield (
        "none: the recipe, τ = 4, the last 200 words",
        *(results(name, scheme).text("accuracy", ".2f", 100) for scheme in PAIR),
    )
    longer, keras = (
        results("imdb/length400", PAIR[0]),
        results("imdb/length200", "periodic-as-keras"),
    )
    for said, found in (("the last 400 words", longer), (AS_KERAS, keras)):
        yield said, found.text("accuracy", ".2f", 100), "not run"
    yield "the paper", *(f"{paper(name)[scheme]:.2f}" for scheme in PAIR)


def missing() -> Iterator[Row]:
    """What was not run."""
    yield "table", "not run"
    for number in "123456":
        known = [name for name in recipes.names() if name.startswith(f"table{number}/")]
        lacking: dict[str, list[str]] = {}
        for name in known:
            if not begun(name) and name not in RUN_ELSEWHERE:
                data, _, rest = label(name).partition(", ")
                lacking.setdefault(data, []).append(rest)
        said = [f"{data}: {'; '.join(rest)}" for data, rest in lacking.items()]
        yield (
            number,
            "all nine" if len(lacking.get("CIFAR-10", [])) == 9 else ". ".join(said) or "–",
        )


def rows(path: str) -> list[dict[str, str]]:
    """The lines of a CSV file."""
    text = (RESULTS / path).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


TABLES: dict[str, Callable[[], Iterator[Sequence[Any]]]] = {
    "cells": cells, "missing": missing, "designs": designs, "partitions": partitions,
    "ablation": ablation, "milder": milder, "rates": rates, "permuted": permuted,
    "imdb": imdb,
}  # fmt: skip


def table(name: str) -> str:
    """A table as Markdown."""
    head, *body = TABLES[name]()
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(str(cell or '') for cell in line)} |\n" for line in lines)


def written(page: str) -> str:
    """A page with its tables as they are now."""
    return MARKS.sub(lambda found: f"{found[1]}{table(found[2])}{found[4]}", page)


ALL_CELLS = "results/results.csv"
COLUMNS = ("recipe", "scheme", "reported", "reported_deviation", "measured", "measured_deviation",
           "seeds", "diverged", "metric")  # fmt: skip


def all_cells() -> str:
    """A line for each scheme of the paper's that was run, as CSV."""
    lines = [",".join(COLUMNS)]
    for name in recipes.names():
        about = recipes.load(name).paper if name.startswith("table") else None
        for scheme, reported in (about.reported if about else {}).items():
            found, lost = results(name, scheme), diverged(name, scheme)
            if found.seeds or lost:
                values = found.values("accuracy", 100)
                own = (f"{mean(values):.6f}" if values else "",
                       f"{stdev(values):.6f}" if len(values) > 1 else "")  # fmt: skip
                line = name, scheme, *reported, *own, len(values), lost, "accuracy"
                lines.append(",".join(map(str, line)))
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the pages and the list of all cells, or check them."""
    stale = []
    for name in (*PAGES, ALL_CELLS):
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        now = all_cells() if name == ALL_CELLS else written(page)
        if now != page:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(now, encoding="utf-8")
    print("\n".join(stale) or "the pages are as results/ says")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
