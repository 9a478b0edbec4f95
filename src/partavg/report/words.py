"""What was run, in words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partavg.folder import DATA
from partavg.pairs import Compared, compared
from partavg.report.runs import Group
from partavg.verdict import main_metric, verdict

Settings = dict[str, Any]


def task(settings: Settings) -> str:
    """Who trains what on what, for how long."""
    get = settings.get
    workers = get("training.workers", "?")
    if any(key.startswith("flower.") for key in settings):
        flower = get("flower.job", "federation")
        return f"{workers} clients of Flower train together ({flower}) for {_budget(settings)}"
    data, split = "", ""
    if get("data.name") == "given":  # made in Python, where data have no name
        data = f" on {get('data.samples', '?')} samples"
    elif "data.name" in settings:
        data = f" on {_bare(get('data.name'))}"
    if get("split.name", "given") != "given":
        split = f" ({_bare(get('split.name'))} split{_alpha(settings)})"
    model = _bare(get("model.name", "a model"))
    text = f"{workers} workers train {model}{data}{split} for {_budget(settings)}"
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
    if own := settings.get("averaging.local"):
        said += f", and each client keeps {', '.join(map(str, own))} to itself"
    said += f"; {_bare(settings.get('solver.name', 'sgd'))}"
    return said + _promise(settings)


def _promise(settings: Settings) -> str:
    """What a private run protects clients by."""
    if "privacy.clip" not in settings:
        return ""
    clip, noise = (settings.get(f"privacy.{key}", 0) for key in ("clip", "noise"))
    delta, own = settings.get("privacy.delta", 1e-5), settings.get("privacy.local")
    whose = "each client's own noise" if own else "noise"
    return f"; private, changes clipped at {clip:g}, {whose} of {noise:g} clips, δ = {delta:g}"


def tasks(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Each task that was run, and by which groups."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(task(group.runs[0].settings), []).append(group)
    return found


_TASK = ("data.", "split.", "training.scale", "training.steps", "training.epochs")


def comparable(group: Group, other: Group) -> bool:
    """Whether two groups did the same task on the same budget, with the same data."""
    if _other_data(group, other):
        return False
    one, another = (
        {
            key: str(value)
            for key, value in each.runs[0].settings.items()
            if key.startswith(_TASK) and not key.endswith((".seed", ".sha256"))  # of other seeds
        }
        for each in (group, other)
    )
    return one == another


def _other_data(group: Group, other: Group) -> bool:
    """Whether runs of one seed had other samples, where that is known: files may have changed."""
    one, another = (
        {run.settings.get("training.seed"): run.environment.get(DATA) for run in each.runs}
        for each in (group, other)
    )
    pairs = [(one[seed], another[seed]) for seed in one if seed in another]
    return any(
        ours[side] != theirs[side]
        for ours, theirs in pairs
        if isinstance(ours, dict) and isinstance(theirs, dict)
        for side in ours.keys() & theirs.keys()
    )


def together(groups: Sequence[Group], runs: Sequence[Path]) -> list[Group]:
    """The groups of some runs, and those that can be compared with them."""
    ours = {path.resolve() for path in runs}
    own = [group for group in groups if any(run.path.resolve() in ours for run in group.runs)]
    return [group for group in groups if group in own or comparable(group, own[0])]


def seen(groups: Sequence[Group]) -> str:
    """What a comparison found, in a sentence; empty if the runs are not to be compared so."""
    results = [group.result for group in groups]
    return verdict(results) if alike(groups) and main_metric(results) else ""


def paired(groups: Sequence[Group]) -> list[Compared]:
    """Each scheme against the reference; empty if the runs are not to be compared so."""
    results = [group.result for group in groups]
    metric = main_metric(results)
    return compared(results, metric) if metric and alike(groups) else []


def alike(groups: Sequence[Group]) -> bool:
    """Whether there are several, of the same task and budget, all at their end."""
    alike = all(comparable(group, groups[0]) for group in groups)
    ended = all(run.summary for group in groups for run in group.runs)
    return len(groups) > 1 and alike and ended


def _bare(name: object) -> str:
    """A name without the file or module of one's own that it is from."""
    return str(name).rpartition(":")[2]


def _budget(settings: Settings) -> str:
    steps, epochs = (settings.get(f"training.{unit}") for unit in ("steps", "epochs"))
    budget = f"{epochs:g} epochs" if epochs is not None else f"{steps or '?'} steps"
    scale = settings.get("training.scale", 1)
    return budget + (f", scaled to {scale:g} of that and of the data" if scale != 1 else "")


def _alpha(settings: Settings) -> str:
    return f", alpha {settings['split.alpha']:g}" if "split.alpha" in settings else ""
