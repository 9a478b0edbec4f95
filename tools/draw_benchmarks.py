"""Draw and tabulate docs/benchmarks.md from results/benchmarks: a picture for each question.

    python tools/draw_benchmarks.py

peers.csv, growth.csv and clients.csv are written by programs in benchmarks/, measured.csv is a copy
of figures in benchmarks/RESULTS.md. A table stands between `<!-- table: name -->` and
`<!-- end -->`.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import NamedTuple

from picture import IMAGES, WIDTH, chart, legend, picture

from partavg.report.palette import LIGHT

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks"
PAGE = ROOT / "docs" / "benchmarks.md"
MARKS = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LEFT, TOP, ROW, SPAN = 560, 56, 24, 330  # SPAN pixels for all of the axis
SIDES = {0: "plain loop", 1: "partavg"}
NAMES = {
    "loop": "plain loop",
    "pfl": "pfl-research 0.6",
    "fedjax": "FedJAX",
    "flower": "Flower's simulation",
}
NARROW, HYPHEN = "\N{NO-BREAK SPACE}", "\N{NON-BREAKING HYPHEN}"  # cells are not broken there
HAS_END = {"cifar10"}  # pfl's benchmark says how many rounds there are
Row = dict[str, str]


class Dot(NamedTuple):
    """How many times as long something takes."""

    work: str
    beside: str
    ours: str
    theirs: str
    unit: str
    times: float
    day: str


def rows(name: str) -> list[Row]:
    """What a file holds; nothing where there is none yet."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    """A figure as pages write it."""
    return float(text.replace(",", ""))


def peers() -> list[Dot]:
    """What others take, in units of what ours takes."""
    return [
        Dot(*common(row), number(row["theirs"]) / number(row["ours"]), row["day"])
        for row in rows("measured")
        if row["question"] == "peers"
    ]


def floor() -> list[Dot]:
    """What ours takes, in units of what it would at best; a rate is better if it is larger."""
    found = []
    for row in rows("measured"):
        if row["question"] == "floor":
            times = number(row["ours"]) / number(row["theirs"])
            times = 1 / times if row["unit"] == "TFLOP/s" else times
            found.append(Dot(*common(row), times, row["day"]))
    return found


def common(row: Row) -> tuple[str, str, str, str, str]:
    """What is measured, as a page says it."""
    work = row["work"] if row["machine"] == "H200" else f"{row['work']}, {row['machine']}"
    return work, row["beside"], row["ours"], row["theirs"], row["unit"]


class Turns(NamedTuple):
    """Runs of a peer with the numbers of threads and processes that are best for it."""

    work: str
    peer: str
    threads: str
    processes: str
    seconds: dict[str, float]
    """Of a round, for each run."""
    whole: dict[str, float]
    """Of all rounds, where the work's author says how many they are; else the same again."""

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.whole.values())


def in_turn() -> Iterator[tuple[Turns, list[float]]]:
    """Of peers.csv each peer at its best, and ratios to ours at its best, turn by turn."""
    found: dict[tuple[str, str], Turns] = {}
    known: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows("peers"):
        key = row["work"], row["peer"], row["threads"], row["processes"]
        known.setdefault(key, []).append(row)
    for key, alike in known.items():
        counts = "whole" if key[0] in HAS_END else "seconds"
        times = ({row["run"]: number(row[what]) for row in alike} for what in ("seconds", counts))
        turns = Turns(*key, *times)
        if key[:2] not in found or turns.middle < found[key[:2]].middle:
            found[key[:2]] = turns
    for turns in found.values():
        ours = found[turns.work, "partavg"].whole
        yield turns, [value / ours[run] for run, value in turns.whole.items() if run in ours]


def is_ours(row: Row) -> bool:
    """Whether partavg is what was timed."""
    return "partavg" in (row.get("peer"), row.get("side"))


def dots(title: str, found: Sequence[tuple[str, float]], ends: tuple[float, float]) -> str:
    """A line for each, with a dot on a logarithmic axis."""
    low, high = map(math.log10, ends)
    height = TOP + ROW * len(found) + 34

    def across(times: float) -> float:
        return LEFT + SPAN * (math.log10(times) - low) / (high - low)

    drawn = [f'<text class="head" x="20" y="24">{escape(title)}</text>']
    for power in range(math.ceil(low), math.floor(high) + 1):
        x = across(10**power)
        drawn.append(f'<path class="grid" d="M{x:.1f} {TOP - 12}V{height - 30}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{10**power}</text>')
    for place, (label, times) in enumerate(found):
        y, x = TOP + ROW * place + 6, across(times)
        drawn.append(f'<text x="{LEFT - 14}" y="{y + 5}" text-anchor="end">{escape(label)}</text>')
        drawn.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{LIGHT.lines[1]}"/>')
        drawn.append(f'<text x="{x + 10:.1f}" y="{y + 5}">{three(times)}</text>')
    return picture(LEFT + SPAN + 60, height, drawn, "text { font-size: 13px; }")


def draw_peers() -> str:
    """Others beside ours, on both machines."""
    found = [(f"{dot.work}: {dot.beside}", dot.times) for dot in peers()]
    for turns, ratios in in_turn():
        if turns.peer != "partavg":
            found.append((f"{WORKS[turns.work]}: {NAMES[turns.peer]}", median(ratios)))
    return dots("Time of others, in units of ours (logarithmic)", found, (0.8, 400))


WORKS = {"mlp": "MLP, 128 users, CPU", "cifar10": "CNN, 50 of 1,000 users, H200"}


def draw_floor() -> str:
    """Ours beside what the machine allows."""
    found = [(f"{dot.work}: {dot.beside}", dot.times) for dot in floor()]
    return dots("Our time, in units of a floor (logarithmic)", found, (0.5, 12))


def draw_growth() -> str:
    """An iteration of one worker against the number of workers, and against parameters."""
    parts: list[str] = []
    charts = (
        ("workers", "µs of an iteration for each worker, MLP 64-64-64-10", "workers"),
        ("parameters", "ns of an iteration for each parameter, 16 workers", "parameters"),
    )
    for place, (grows, title, label) in enumerate(charts):
        lines = []
        for color, side in SIDES.items():
            points = [
                (number(row[grows]), per(row))
                for row in rows("growth")
                if row["grows"] == grows and is_ours(row) == (side == "partavg")
            ]
            lines.append((color, points))
        parts += chart(place, title, label, lines, log_x=True)
    return picture(2 * WIDTH, 366, parts + legend(SIDES, (56, 176)))


MEMORY = {0: "a row for all", 1: "partavg"}


def draw_clients() -> str:
    """What very many clients take: the memory of what they keep, and time."""
    known = rows("clients")

    def against(key: str) -> list[tuple[float, float]]:
        return [(number(row["clients"]), number(row[key])) for row in known]

    kept = [(0, against("bank_of_all_mb")), (1, against("bank_mb"))]
    steps = [(1, against("step_ratio"))]
    parts = [
        *chart(0, "MB that clients keep after 310 steps", "clients", kept, log_x=True),
        *chart(1, "A step, in units of one without them", "clients", steps, log_x=True),
    ]
    return picture(2 * WIDTH, 366, parts + legend(MEMORY, (56, 200)))


def table_of_clients() -> Iterator[str]:
    """A line for each number of clients."""
    yield ("| clients | set-up, s | clients keep, MB | a row for all, MB | redraw, ms | step, ms | "
           "times a step without | next checkpoint |")  # fmt: skip
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows("clients"):
        step = "{step_ratio} ({step_ratio_low} to {step_ratio_high})".format(**{
            key: f"{number(row[key]):.2f}" for key in row if key.startswith("step_ratio")
        })  # fmt: skip
        cells = [form.format(number(row[key])) for key, form in (
            ("setup_s", "{:.2g}"), ("bank_mb", "{:.0f}"), ("bank_of_all_mb", "{:,.0f}"),
            ("redraw_ms", "{:.1f}"), ("step_ms", "{:.1f}"))]  # fmt: skip
        saved = f"{number(row['next_save_mb']):.2g} MB in {1e3 * number(row['next_save_s']):.0f} ms"
        yield f"| {int(row['clients']):,} | {' | '.join(cells)} | {step} | {saved} |"


def per(row: Row) -> float:
    """Microseconds for each worker, or nanoseconds for each of its parameters."""
    each = 1e3 * number(row["ms"]) / number(row["workers"])
    return each if row["grows"] == "workers" else 1e3 * each / number(row["parameters"])


def table_of_dots(found: Callable[[], list[Dot]], what: str) -> Iterator[str]:
    """A line for each comparison."""
    yield f"| work | beside | ours | theirs | {what} | measured |"
    yield "|---|---|---|---|---|---|"
    for dot in found():
        ours, theirs = (f"{value}{NARROW}{dot.unit}" for value in (dot.ours, dot.theirs))
        day = dot.day.replace("-", HYPHEN)
        yield f"| {dot.work} | {dot.beside} | {ours} | {theirs} | {three(dot.times)} | {day} |"


def table_in_turn() -> Iterator[str]:
    """A line for each peer, with what it was run on."""
    yield "| work | peer | threads, processes | seconds a round | times ours | all rounds, s | n |"
    yield "|---|---|---|---|---|---|---|"
    for (work, peer, threads, processes, own, whole), ratios in in_turn():
        seconds = own.values()
        name, beside = "**partavg**", ""
        if peer != "partavg":
            beside = between(ratios)
            name = NAMES[peer]
        every = f"{median(whole.values()):.3g}" if work in HAS_END else ""
        ran = f"{threads}, {processes} | {between(list(seconds))} | {beside} | {every}"
        yield f"| {WORKS[work]} | {name} | {ran} | {len(seconds)} |"


def between(values: Sequence[float]) -> str:
    """The median, and between what; of one value that alone."""
    ends = f" ({three(min(values))} to {three(max(values))})" if len(values) > 1 else ""
    return three(median(values)) + ends


def three(value: float) -> str:
    """A number to three digits, the last ones zeros or not."""
    return f"{value:#.3g}".rstrip(".")


def table_of_growth() -> Iterator[str]:
    """A line for each size."""
    yield "| workers | parameters of each | partavg, ms | engine | plain loop, ms | n |"
    yield "|---|---|---|---|---|---|"
    known = rows("growth")
    for row in filter(is_ours, known):
        size = row["grows"], row["workers"], row["parameters"]
        loops = [r for r in known if (r["grows"], r["workers"], r["parameters"]) == size]
        loop = " ".join(spread(r) for r in loops if not is_ours(r)) or "–"
        count = f"{int(row['workers']):,} | {int(row['parameters']):,}"
        yield f"| {count} | {spread(row)} | {row['engine']} | {loop} | {row['n']} |"


def spread(row: Row) -> str:
    """A median, and between what."""
    return f"{row['ms']} ({row['fastest']} to {row['slowest']})"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "peers": lambda: table_of_dots(peers, "times ours"),
    "peers-in-turn": table_in_turn,
    "floor": lambda: table_of_dots(floor, "times the floor"),
    "growth": table_of_growth,
    "clients": table_of_clients,
}
PICTURES = {
    "benchmarks-peers": draw_peers,
    "benchmarks-floor": draw_floor,
    "benchmarks-growth": draw_growth,
    "benchmarks-clients": draw_clients,
}


def written(page: str) -> str:
    """The page with its tables as the files say them."""

    def table(found: re.Match[str]) -> str:
        return found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[4]

    return MARKS.sub(table, page)


def main() -> None:
    """Write the pictures and the page's tables."""
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
