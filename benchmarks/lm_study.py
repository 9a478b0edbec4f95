"""Language models over slow links: many methods at equal bytes, each with its own best settings.

    python benchmarks/lm_study.py --text reviews.tsv.xz --out lm --seconds 500

trains a GPT of 3 M parameters on bytes of IMDB's reviews (label, name and text of a review in a
line). For every task (workers, interval, shares) and method, settings are chosen by the loss of
one seed on validation documents; then seeds that took no part in the choice are judged on test
documents. Runs are rows of `lm/rows.jsonl`: what is there already is not run again, so it can be
stopped at any time. `--show` prints the tables of what there is.
"""

import argparse
import json
import lzma
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import partavg
from partavg.core.rates import Cosine
from partavg.losses import next_token
from partavg.models import gpt
from partavg.solvers import SOLVERS

LOCAL = {"beta2": 0.95, "weight_decay": 0.1}
CHOSEN_BY, JUDGED_BY = 0, (1, 2, 3)  # seeds
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
OUTER = ((0.7, 0.9), (0.7, 0.6), (1.0, 0.3))  # rates and momenta
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


@dataclass(frozen=True)
class Task:
    """Who trains on what, and how often the whole model is averaged."""

    workers: int = 8
    interval: int = 32
    shares: str = "even"

    def __str__(self) -> str:
        return f"{self.workers} workers, interval {self.interval}, {self.shares} shares"


@dataclass(frozen=True)
class Method:
    """How workers step and average."""

    local: str = "adamw"
    parts: int | None = 1
    """None: as many as the interval has steps."""
    partition: str = "channel"
    outer: bool = False
    delay: int = 0
    mix: float | None = None
    synchronous: bool = False

    def settings(self) -> list[tuple[float, ...]]:
        """What is tried: rates, and outer rates and momenta."""
        rates: list[tuple[float, ...]] = [
            (rate * (5 if self.local == "muon" else 1),) for rate in RATES
        ]
        return [(*a, *b) for a, b in product(rates, OUTER)] if self.outer else rates

    def simulation(self, task: Task, setting: tuple[float, ...]) -> dict[str, Any]:
        """The arguments that it sets."""
        solver = SOLVERS[self.local](**LOCAL)
        if self.outer:
            rate, momentum = setting[1:]
            solver = partavg.Outer(partavg.SGD(momentum, nesterov=True), rate, base=solver)
        interval = 1 if self.synchronous else task.interval
        parts = self.parts or interval
        spread = partavg.Schedule.streaming(interval, parts, delay=self.delay)
        schedule = spread if self.delay else partavg.Schedule(interval, parts)
        kept = {"partition": self.partition, "delay": self.delay, "mix": self.mix}
        return {"solver": solver, "schedule": schedule, **kept}


METHODS = {
    "synchronous": Method(synchronous=True),
    "periodic": Method(),
    "partial": Method(parts=None),
    "SPARTA": Method(parts=None, partition="fresh"),
    "DiLoCo": Method(outer=True),
    "Streaming DiLoCo": Method(outer=True, parts=4, partition="strided", delay=2, mix=0.5),
    "partial, outer Nesterov": Method(parts=None, outer=True),
    "Muon, synchronous": Method("muon", synchronous=True),
    "Muon, partial": Method("muon", parts=None),
    "MuLoCo": Method("muon", outer=True),
    "Muon, partial, outer Nesterov": Method("muon", parts=None, outer=True),
}
BASE = Task()
OTHERS = (
    Task(interval=96), Task(interval=256), Task(workers=4), Task(workers=16),
    Task(shares="by rating"),
)  # fmt: skip
FEW = ("synchronous", "periodic", "partial", "DiLoCo", "partial, outer Nesterov")


class Reviews:
    """Bytes of reviews, cut by review into those to train on, to choose by and to judge by."""

    def __init__(self, path: Path, context: int, most: int, device: torch.device) -> None:
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rb") as file:
            rows = [line.rstrip(b"\n").split(b"\t", 2) for line in file]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
        rows = [rows[place] for place in order]
        self.context, self._device = context, device
        held = len(rows) // 20
        self.validation, self.test = (
            self._windows(rows[first : first + held])[:most] for first in (0, held)
        )
        rated: dict[bytes, list[Any]] = {}
        for row in rows[2 * held :]:
            rated.setdefault(row[1].rpartition(b"_")[2], []).append(row)
        by_rating = [row for key in sorted(rated, key=int) for row in rated[key]]
        self._owned = {
            "even": self.pairs(self._windows(rows[2 * held :])),
            "by rating": self.pairs(self._windows(by_rating)),
        }

    def _windows(self, rows: list[Any]) -> Tensor:
        text = torch.frombuffer(bytearray(b"\n".join(row[2] for row in rows)), dtype=torch.uint8)
        return text.unfold(0, self.context + 1, self.context).to(self._device)

    def pairs(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        wide = windows.long()
        return wide[:, :-1], wide[:, 1:]

    def shares(self, task: Task) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
        """All that workers train on, and which windows are whose."""
        pairs = self._owned[task.shares]
        return pairs, list(torch.arange(len(pairs[0])).tensor_split(task.workers))


@dataclass(frozen=True)
class Study:
    """Everything that all runs share."""

    text: Reviews
    steps: int
    batch: int
    size: str
    device: torch.device
    engine: str = "auto"

    def run(self, task: Task, name: str, setting: tuple[float, ...], seed: int) -> dict[str, Any]:
        """Train once; what came out."""
        began = time.perf_counter()
        torch.manual_seed(seed)
        samples, split = self.text.shares(task)
        simulation = partavg.Simulation(
            gpt((self.text.context,), 256, size=self.size),
            next_token, samples, split,
            lr=Cosine(setting[0], self.steps, floor=0.1, warmup=self.steps // 10),
            batch=self.batch, seed=seed, device=self.device, engine=self.engine,
            **METHODS[name].simulation(task, setting),
        )  # fmt: skip
        drift, cosine = [], None
        middle = self.steps // 2 // task.interval * task.interval
        before = None
        for record in simulation.train(until=self.steps):
            if record.step == 10:
                self._wait()
                early = time.perf_counter()
            if record.step == middle:
                before = simulation.workers.params.clone()
            if record.step == middle + task.interval - 1 and before is not None:
                cosine, before = alike(simulation.workers.params - before), None
            place = record.step - middle  # all ages of a part count alike
            if 0 <= place < task.interval and place % max(1, task.interval // 8) == 0:
                drift.append(simulation.discrepancy().total)
        self._wait()
        took = (time.perf_counter() - early) / (self.steps - 10)
        found = {
            side: float(simulation.evaluate(self.text.pairs(windows)).loss)
            for side, windows in (("validation", self.text.validation), ("test", self.text.test))
        }
        return {
            **found, "discrepancy": mean(drift), "cosine": cosine,
            "bytes": simulation.workers.bytes, "ms_a_step": 1000 * took,
            "seconds": time.perf_counter() - began, "engine": simulation.engine.name,
        }  # fmt: skip

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def alike(moves: Tensor) -> float:
    """The mean cosine between what two workers did."""
    own = F.normalize(moves.float(), dim=1)
    total, count = own.sum(0), len(own)
    return float((total @ total - count) / (count * (count - 1)))


class Rows:
    """What was run, in a file that a run adds a line to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {self._key(row): row for row in map(json.loads, lines)}

    @staticmethod
    def _key(row: dict[str, Any]) -> str:
        return json.dumps([row["task"], row["method"], row["setting"], row["seed"]])

    def get(self, task: Task, name: str, setting: tuple[float, ...], seed: int) -> Any:
        """A row, if it is there."""
        key = {"task": str(task), "method": name, "setting": list(setting), "seed": seed}
        return self.known.get(self._key(key))

    def of(self, task: Task, name: str) -> list[dict[str, Any]]:
        """All rows of a method in a task."""
        rows = self.known.values()
        return [row for row in rows if (row["task"], row["method"]) == (str(task), name)]

    def add(
        self, task: Task, name: str, setting: tuple[float, ...], seed: int, found: dict[str, Any]
    ) -> None:
        """Write a row."""
        row = {"task": str(task), "method": name, "setting": list(setting), "seed": seed, **found}
        self.known[self._key(row)] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def best(self, task: Task, name: str) -> tuple[float, ...] | None:
        """The setting with the least loss on validation documents."""
        tried = [row for row in self.of(task, name) if row["seed"] == CHOSEN_BY]
        finite = [row for row in tried if row["validation"] == row["validation"]]
        if not finite:
            return None
        return tuple(min(finite, key=lambda row: row["validation"])["setting"])


Run = tuple[Task, str, tuple[float, ...], int]


def plan(rows: Rows, methods: list[str]) -> Iterator[Run]:
    """What is to be run, in an order that makes the most of the time there is."""
    for name in methods:
        for setting in METHODS[name].settings():
            yield BASE, name, setting, CHOSEN_BY
    for seed in JUDGED_BY:
        for name in methods:
            yield BASE, name, rows.best(BASE, name) or (), seed
    for task in OTHERS:
        few = [name for name in FEW if name in methods]
        for name in few:  # the best settings elsewhere, and their neighbors
            yield from ((task, name, s, CHOSEN_BY) for s in near(name, rows.best(BASE, name)))
        for seed in JUDGED_BY:
            for name in few:
                yield task, name, rows.best(task, name) or (), seed


def near(name: str, best: tuple[float, ...] | None) -> list[tuple[float, ...]]:
    """Settings that differ in one number, by a step, from the best."""
    if best is None:
        return []
    every = METHODS[name].settings()
    rates = sorted({setting[0] for setting in every})
    place = rates.index(best[0])
    close = rates[max(0, place - 1) : place + 2]
    return [s for s in every if s == best or (s[0] in close and s[1:] == best[1:])
            or (s[0] == best[0] and s[1:] != best[1:])]  # fmt: skip


def tables(rows: Rows) -> str:
    """What there is: test losses of the seeds that took no part in the choice."""
    text = []
    for task in (BASE, *OTHERS):
        lines = []
        reference = _judged(rows, task, "periodic")
        for name in METHODS:
            judged = _judged(rows, task, name)
            if not judged:
                continue
            values = [row["test"] for row in judged.values()]
            best = rows.best(task, name) or ()
            edge = " (edge)" if best[0] in (METHODS[name].settings()[0][0],
                                            METHODS[name].settings()[-1][0]) else ""  # fmt: skip
            pairs = [judged[seed]["test"] - reference[seed]["test"]
                     for seed in judged if seed in reference]  # fmt: skip
            lead = (
                ""
                if name == "periodic" or len(pairs) < 2
                else (
                    f"{mean(pairs):+.4f} ± {T_95[len(pairs)] * stdev(pairs) / sqrt(len(pairs)):.4f}"
                )
            )
            first = next(iter(judged.values()))
            cosine = "" if first["cosine"] is None else f"{first['cosine']:.2f}"
            lines.append(
                f"| {name} | {mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f} | "
                f"{mean(values) / log(2):.3f} | {exp(mean(values)):.2f} | {lead} | {len(values)} | "
                f"{', '.join(f'{x:g}' for x in best)}{edge} | {first['bytes'] / 1e6:.0f} | "
                f"{first['discrepancy']:.3g} | {cosine} | {first['ms_a_step']:.1f} |"
            )
        if lines:
            head = ("method", "nats a byte", "bits a byte", "perplexity", "against periodic", "n",
                    "rate, outer rate, momentum", "MB sent a worker", "discrepancy", "cosine",
                    "ms a step")  # fmt: skip
            text += [
                f"### {task}",
                "",
                f"| {' | '.join(head)} |",
                "|" + "---|" * len(head),
                *lines,
                "",
            ]
    return "\n".join(text)


def _judged(rows: Rows, task: Task, name: str) -> dict[int, dict[str, Any]]:
    best = rows.best(task, name)
    if best is None:
        return {}
    found = ((seed, rows.get(task, name, best, seed)) for seed in JUDGED_BY)
    return {seed: row for seed, row in found if row is not None}


def main() -> None:
    """Run what the time allows, then show what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="reviews, one a line: label, name, text")
    parser.add_argument("--out", type=Path, default=Path("lm-study"))
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--steps", type=int, default=768)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--size", default="3m")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--methods", default=",".join(METHODS).replace(", ", "+"))
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    methods = [name.replace("+", ", ") for name in given.methods.split(",")]
    given.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out / "rows.jsonl")
    if not given.show:
        train(given, rows, methods)
    print(tables(rows))


def train(given: argparse.Namespace, rows: Rows, methods: list[str]) -> None:
    """Run what is not there yet, as long as there is time."""
    began = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = Reviews(given.text, given.context, 2000, device)
    study = Study(text, given.steps, given.batch, given.size, device, given.engine)
    for run in plan(rows, methods):
        if not run[2] or rows.get(*run) is not None:
            continue
        if time.perf_counter() - began > given.seconds:
            print("time is up: call again to go on")
            return
        task, name, setting, seed = run
        try:
            found = study.run(*run)
        except ValueError as error:
            found = {"validation": float("nan"), "test": float("nan"), "error": str(error)}
        rows.add(*run, found)
        print(f"{time.perf_counter() - began:6.0f} s  {task}, {name} {setting}, seed {seed}: "
              f"{found}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
