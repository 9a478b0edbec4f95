"""What was run, in words."""

from collections.abc import Sequence
from typing import Any

from partavg.comparison import main_metric, verdict
from partavg.report.runs import Group

Settings = dict[str, Any]


def task(settings: Settings) -> str:
    """Who trains what on what, for how long."""
    get = settings.get
    workers = get("training.workers", "?")
    if "data.name" not in settings:
        flower = get("flower.job", "federation")
        return f"{workers} clients of Flower train together ({flower}) for {_budget(settings)}"
    text = (
        f"{workers} workers train {get('model.name')} on {get('data.name')} "
        f"({get('split.name')} split{_alpha(settings)}) for {_budget(settings)}"
    )
    fraction = get("participation.fraction", 1)
    return text + (f", {100 * fraction:g} % of them at a time" if fraction != 1 else "")


def scheme(settings: Settings) -> str:
    """How the models are averaged, and by which solver they are trained.

    >>> scheme({"averaging.interval": 20, "averaging.parts": 20, "solver.name": "sgd"})
    'one of 20 parts after every step, so each part every 20 steps; sgd'
    """
    interval = int(settings.get("averaging.interval", 1))
    parts = int(settings.get("averaging.parts", 1))
    every = "every step" if interval == parts else f"every {interval // parts} steps"
    if parts > 1:
        said = f"one of {parts} parts after {every}, so each part every {interval} steps"
    else:
        said = f"the whole model after {every}"
    if settings.get("adapt.name", "fixed") != "fixed":
        said += f" at first, then as {settings['adapt.name']} adapts it"
    return f"{said}; {settings.get('solver.name', 'sgd')}"


def tasks(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Each task that was run, and by which groups."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(task(group.runs[0].settings), []).append(group)
    return found


def seen(groups: Sequence[Group]) -> str:
    """What a comparison found, in a sentence; empty if the runs are not to be compared so."""
    results = [group.result for group in groups]
    key, _ = main_metric(results)
    complete = all(
        len(result.values(key)) == len(group.runs) == len(groups[0].runs)
        for result, group in zip(results, groups, strict=True)
    )
    kept = ("data.", "split.", "training.scale")
    same = {
        tuple(sorted((k, str(v)) for k, v in group.runs[0].settings.items() if k.startswith(kept)))
        for group in groups
    }
    return verdict(results) if complete and len(same) == 1 and len(groups) > 1 else ""


def _budget(settings: Settings) -> str:
    steps = settings.get("training.steps")
    budget = f"{steps} steps" if steps else f"{settings.get('training.epochs', 0):g} epochs"
    scale = settings.get("training.scale", 1)
    return budget + (f", scaled to {scale:g} of that and of the data" if scale != 1 else "")


def _alpha(settings: Settings) -> str:
    return f", alpha {settings['split.alpha']:g}" if "split.alpha" in settings else ""
