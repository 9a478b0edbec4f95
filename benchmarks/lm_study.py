"""Language models over slow links: many methods at equal bytes, each with its own best settings.

    python benchmarks/lm_study.py --text reviews.tsv.xz --out lm --seconds 500

trains a GPT of 3 M parameters on bytes of IMDB's reviews (label, name and text of a review in a
line). For every task (workers, interval, shares) and method, settings are chosen by the loss of
one seed on validation documents; then seeds that took no part in the choice are judged on test
documents. Runs are rows of `lm/rows.jsonl`: what is there already is not run again, so it can be
stopped at any time. `--show` prints the tables of what there is.
"""

import argparse
import lzma
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from lm_methods import BASE, FEW, LARGE, METHODS, OTHERS, SMALL, Setting, Task
from lm_rows import CHOSEN_BY, JUDGED_BY, Rows, tables
from torch import Tensor
from torch.nn import functional as F

import partavg
from partavg.core.rates import Cosine
from partavg.losses import next_token
from partavg.models import gpt


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
    device: torch.device
    engine: str = "auto"

    def run(self, task: Task, name: str, setting: Setting, seed: int) -> dict[str, Any]:
        """Train once; what came out."""
        began = time.perf_counter()
        torch.manual_seed(seed)
        samples, split = self.text.shares(task)
        simulation = partavg.Simulation(
            gpt((self.text.context,), 256, size=task.size),
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


Run = tuple[Task, str, Setting, int]


def plan(rows: Rows, methods: list[str]) -> Iterator[Run]:
    """What is to be run, in an order that makes the most of the time there is."""
    few = [name for name in methods if name in FEW]
    yield from tuning(rows, BASE, methods)
    for task in OTHERS:
        for name in few:
            method = METHODS[name]
            best = rows.chosen(BASE, name, method.settings()) or ()
            yield from ((task, name, setting, CHOSEN_BY) for setting in method.near(best))
        yield from judging(rows, task, few)
    yield from judging(rows, BASE, methods)
    yield from tuning(rows, SMALL, methods)
    yield from judging(rows, SMALL, methods)
    yield from ((LARGE, name, rows.chosen(LARGE, name) or (), JUDGED_BY[0]) for name in few)


def tuning(rows: Rows, task: Task, methods: list[str]) -> Iterator[Run]:
    """All settings of every method, and those next to the best of them."""
    for name in methods:
        yield from ((task, name, setting, CHOSEN_BY) for setting in METHODS[name].settings())
        best = rows.chosen(task, name) or ()
        yield from ((task, name, setting, CHOSEN_BY) for setting in METHODS[name].more(best))


def judging(rows: Rows, task: Task, methods: list[str]) -> Iterator[Run]:
    """The best setting of every method once more, by seeds that took no part in the choice."""
    for seed in JUDGED_BY:
        yield from ((task, name, rows.chosen(task, name) or (), seed) for name in methods)


def main() -> None:
    """Run what the time allows, then show what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="reviews, one a line: label, name, text")
    parser.add_argument("--out", type=Path, default=Path("lm-study"))
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--steps", type=int, default=768)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tasks", default="", help="only those with one of these words, by ;")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--methods", default=",".join(METHODS).replace(", ", "+"))
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    methods = [name.replace("+", ", ") for name in given.methods.split(",")]
    given.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out)
    if not given.show:
        train(given, rows, methods)
    print(tables(rows))


def train(given: argparse.Namespace, rows: Rows, methods: list[str]) -> None:
    """Run what is not there yet, as long as there is time."""
    began = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = Reviews(given.text, given.context, 2000, device)
    study = Study(text, given.steps, given.batch, device, given.engine)
    for run in plan(rows, methods):
        asked = any(words in str(run[0]) for words in given.tasks.split(";"))
        if not asked or not run[2] or rows.get(*run) is not None:
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
