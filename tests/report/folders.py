"""Run folders made up in no time, with all that a report can show."""

import json
import math
from pathlib import Path

CONFIG = """[data]
name = "cifar10"
[split]
name = "dirichlet"
alpha = 0.5
[model]
name = "resnet20"
[training]
workers = 4
steps = {steps}
lr = 0.1
seed = {seed}
scale = 1.0
[averaging]
interval = {interval}
parts = {parts}
[solver]
name = "sgd"
"""


def make(
    path: Path,
    *,
    steps: int = 100,
    seed: int = 0,
    interval: int = 10,
    parts: int = 10,
    finished: bool = True,
    rich: bool = True,
    sends: int = 1000,
) -> Path:
    """A run of periodic or partial averaging; `rich` with everything that can be measured."""
    path.mkdir(parents=True)
    settings = {"steps": steps, "seed": seed, "interval": interval, "parts": parts}
    (path / "config.toml").write_text(CONFIG.format(**settings))
    started = f"2026-01-01T00:00:{seed:02d}"
    (path / "environment.json").write_text(json.dumps({"started": started, "torch": "2.13"}))
    rows = [row(step, steps, seed, interval, parts, rich) for step in range(1, steps + 1)]
    rows = [{**one, "bytes": sends * one["step"]} for one in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (path / "split.json").write_text(json.dumps({"counts": [[5, 0, 3], [1, 7, 0], [2, 2, 2]]}))
    if finished:
        timings = {"data": 0.5, "engine": 2.0, "solver": 0.25, "averaging": 0.25}
        summary = {
            "steps": steps, "scale": 1.0, "accuracy": rows[-1]["accuracy"], "train_loss": 0.25,
            "mean_discrepancy": 0.5, "peak_discrepancy": 1.0, "bytes": 1000 * steps,
            "messages": steps, "seconds": 3.0, **({"timings": timings} if rich else {}),
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def row(step: int, steps: int, seed: int, interval: int, parts: int, rich: bool) -> dict:
    tooth = step % interval / interval if parts == 1 else 0.4 + 0.01 * (step % 3)
    found = {
        "step": step,
        "loss": 2 * math.exp(-3 * step / steps) + 0.05 * math.sin(step + seed),
        "lr": 0.1,
        "bytes": 1000 * step,
        "messages": step,
        "discrepancy": tooth,
    }
    if rich:
        found["discrepancy_parts"] = [tooth * (part + 1) / parts for part in range(parts)]
    if step % interval == 0 or step == steps:
        accuracy = 0.9 - 0.7 * math.exp(-4 * step / steps) + 0.01 * seed
        found |= {"accuracy": accuracy, "test_loss": 1 - accuracy}
    if rich and step % interval == 0:
        found |= {"loss_global": 1 / step + 0.1, "loss_smallest_local": 1 / step}
    return found


def comparison(out: Path, seeds: int = 2, **options: object) -> Path:
    """The folder of a comparison of periodic and partial averaging."""
    for seed in range(seeds):
        make(out / f"periodic-seed{seed}", seed=seed, parts=1, **options)
        make(out / f"partial-seed{seed}", seed=seed, parts=10, **options)
    return out
