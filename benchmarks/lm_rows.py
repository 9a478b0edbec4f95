"""Runs of the study of language models: kept in a file, chosen from, and shown as tables."""

import json
from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from lm_methods import BASE, LARGE, METHODS, OTHERS, SMALL, Setting, Task

CHOSEN_BY, JUDGED_BY = 0, (1, 2, 3)  # seeds
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
Row = dict[str, Any]


class Rows:
    """What was run, in files that a run adds a line to the first of."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.jsonl"
        lines = [line for path in sorted(folder.glob("*.jsonl"))
                 for line in path.read_text().splitlines()]  # fmt: skip
        self._known = {self._key(row): row for row in map(json.loads, lines)}

    @staticmethod
    def _key(row: Row) -> str:
        return json.dumps([row["task"], row["method"], row["setting"], row["seed"]])

    def get(self, task: Task, name: str, setting: Setting, seed: int) -> Row | None:
        """A row, if it is there."""
        key = {"task": str(task), "method": name, "setting": list(setting), "seed": seed}
        return self._known.get(self._key(key))

    def add(self, task: Task, name: str, setting: Setting, seed: int, found: Row) -> None:
        """Write a row."""
        row = {"task": str(task), "method": name, "setting": list(setting), "seed": seed, **found}
        self._known[self._key(row)] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def chosen(
        self, task: Task, name: str, among: Sequence[Setting] | None = None
    ) -> Setting | None:
        """The setting of the least loss on validation documents, of all or of some."""
        if task == LARGE:
            best = self.chosen(BASE, name)
            return best and (best[0] / 2, *best[1:])
        tried = [
            row
            for row in self._known.values()
            if (row["task"], row["method"], row["seed"]) == (str(task), name, CHOSEN_BY)
            and row["validation"] == row["validation"]
            and (among is None or tuple(row["setting"]) in among)
        ]
        return tuple(min(tried, key=lambda row: row["validation"])["setting"]) if tried else None

    def judged(self, task: Task, name: str) -> dict[int, Row]:
        """The rows of the chosen setting by seeds that took no part in the choice."""
        best = self.chosen(task, name)
        found = {seed: best and self.get(task, name, best, seed) for seed in JUDGED_BY}
        return {seed: row for seed, row in found.items() if row}


def difference(ours: dict[int, Row], theirs: dict[int, Row]) -> tuple[float, float | None] | None:
    """The mean difference of test losses, seed by seed, and half its 95 % interval."""
    pairs = [ours[seed]["test"] - theirs[seed]["test"] for seed in ours if seed in theirs]
    if not pairs:
        return None
    count = len(pairs)
    return mean(pairs), T_95[count] * stdev(pairs) / sqrt(count) if count > 1 else None


HEAD = ("method", "nats a byte", "bits a byte", "perplexity", "against periodic", "n",
        "rate, outer rate, momentum", "MB sent a worker", "discrepancy", "cosine", "ms a step",
)  # fmt: skip


def tables(rows: Rows) -> str:
    """What there is: test losses of the seeds that took no part in the choice."""
    text = []
    for task in (BASE, *OTHERS, SMALL, LARGE):
        lines = [line for name in METHODS if (line := _line(rows, task, name))]
        if lines:
            text += [f"### {task}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
            text += [*lines, ""]
    return "\n".join(text)


def _line(rows: Rows, task: Task, name: str) -> str:
    judged = rows.judged(task, name)
    best = rows.chosen(task, name)
    if not judged or best is None:
        return ""
    values = [row["test"] for row in judged.values()]
    first, loss = next(iter(judged.values())), mean(values)
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    edge = " (edge)" if task != LARGE and METHODS[name].at_edge(best) else ""
    cells = (
        name, f"{loss:.4f}{spread}", f"{loss / log(2):.3f}", f"{exp(loss):.2f}",
        _against(rows, task, name), len(values), f"{', '.join(f'{x:g}' for x in best)}{edge}",
        f"{first['bytes'] / 1e6:.0f}", f"{first['discrepancy']:.3g}", f"{first['cosine']:.2f}",
        f"{first['ms_a_step']:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _against(rows: Rows, task: Task, name: str) -> str:
    found = difference(rows.judged(task, name), rows.judged(task, "periodic"))
    if name == "periodic" or found is None:
        return ""
    lead, half = found
    return f"{lead:+.4f} (one seed)" if half is None else f"{lead:+.4f} ± {half:.4f}"
