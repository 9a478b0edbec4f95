"""Comparisons: the same task from the same start under several schemes and seeds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from partavg.config import Config
from partavg.folder import RunFolder
from partavg.metrics.metric import Row, number
from partavg.recipe import Recipe

SCHEMES = ("periodic", "partial", "synchronous")


@dataclass(frozen=True, slots=True)
class StartedRun:
    """One run of a comparison."""

    scheme: str
    seed: int
    folder: RunFolder


@dataclass(frozen=True, slots=True)
class PlannedRun(StartedRun):
    """The same with what it trains."""

    config: Config


def schemes_of(recipe: Recipe) -> tuple[str, ...]:
    """The schemes that a recipe names, or the usual ones."""
    return tuple(recipe.schemes) or (tuple(recipe.paper.reported) if recipe.paper else SCHEMES)


def planned_runs(recipe: Recipe, schemes: Sequence[str], seeds: int, out: Path) -> list[PlannedRun]:
    """The runs of a comparison, seed by seed; all have the same budget."""
    if seeds < 1:
        raise ValueError(f"{seeds} seeds give no run: use 1 or more")
    if len(set(schemes)) < len(schemes) or not schemes:
        raise ValueError(f"schemes {', '.join(schemes)!r}: name each scheme once, at least one")
    configs = {scheme: configured(recipe, scheme) for scheme in schemes}
    for scheme, config in configs.items():
        check_scheme_name(scheme)
        if config.data != configs[schemes[0]].data:
            raise ValueError(
                f"schemes {schemes[0]} and {scheme} differ in data: compare them in two recipes"
            )
    first = configs[schemes[0]].training.seed
    return [
        PlannedRun(
            scheme,
            seed,
            RunFolder(out / f"{scheme}-seed{seed}"),
            replace(config, training=replace(config.training, seed=seed)),
        )
        for seed in range(first, first + seeds)
        for scheme, config in configs.items()
    ]


def check_scheme_name(scheme: object) -> None:
    """Raise a ValueError if a scheme cannot name a folder."""
    if not isinstance(scheme, str) or not re.fullmatch(r"\w[\w.+-]*", scheme):
        raise ValueError(f"scheme {scheme!r} cannot name a folder: use letters and digits")


def configured(recipe: Recipe, scheme: str) -> Config:
    """The settings of a scheme; a name of the recipe's own sets nothing by itself."""
    config = recipe.config(scheme)
    averaging = config.averaging
    if scheme in recipe.schemes and not _says_parts(scheme):
        return config
    interval, parts = intervals(scheme, averaging.interval)
    partition = "whole" if parts == 1 else averaging.partition
    averaging = replace(averaging, interval=interval, parts=parts, partition=partition)
    return replace(config, averaging=averaging)


def resumed(entries: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The entries of a comparison to resume: all with the engine of a run that was started."""
    started = [entry for entry in entries if entry.folder.exists]
    stored = [entry.folder.stored_config(entry.config) for entry in started]
    if not stored:
        return list(entries)
    engine = stored[0].engine
    return [replace(entry, config=replace(entry.config, engine=engine)) for entry in entries]


def chosen(recipe: Recipe, scheme: str | None) -> Config:
    """The settings of a single run: of a scheme, of partial averaging, or as the recipe stands."""
    if scheme is None and (recipe.schemes or recipe.paper):
        scheme = "partial"
    return configured(recipe, scheme) if scheme else recipe.config()


def _says_parts(scheme: str) -> bool:
    return scheme in SCHEMES or re.fullmatch(r"[1-9]\d*-parts", scheme) is not None


def intervals(scheme: str, interval: int) -> tuple[int, int]:
    """The interval and the number of parts of a scheme.

    >>> [intervals(scheme, 12) for scheme in ("synchronous", "periodic", "partial", "4-parts")]
    [(1, 1), (12, 1), (12, 12), (12, 4)]
    """
    named = {"synchronous": (1, 1), "periodic": (interval, 1), "partial": (interval, interval)}
    if scheme in named:
        return named[scheme]
    if not _says_parts(scheme):
        raise ValueError(
            f"scheme {scheme!r} is not known: use {', '.join(SCHEMES)}, or 4-parts for another "
            f"number of parts"
        )
    return interval, int(scheme.removesuffix("-parts"))


@dataclass(frozen=True, slots=True)
class Result:
    """The summaries of one scheme, one per seed."""

    scheme: str
    summaries: tuple[Row, ...]

    def values(self, key: str, scale: float = 1.0) -> list[float]:
        """One number of each summary that has it."""
        return [summary[key] * scale for summary in self.summaries if key in summary]

    def text(self, key: str, form: str, scale: float = 1.0) -> str:
        """The mean, with the deviation where there are several seeds."""
        values = self.values(key, scale)
        if not values:
            return "–"
        center = number(mean(values), form)
        if len(values) < 2:
            return center
        _, _, decimals = center.partition(".")
        alike = "#.2g" if "e" in center else f".{len(decimals)}f"
        return f"{center} ± {number(stdev(values), alike)}"


def results(entries: Sequence[StartedRun]) -> list[Result]:
    """The results of the finished runs of a comparison, scheme by scheme."""
    schemes = dict.fromkeys(entry.scheme for entry in entries)
    return [
        Result(
            scheme,
            tuple(
                entry.folder.summary()
                for entry in entries
                if entry.scheme == scheme and entry.folder.finished
            ),
        )
        for scheme in schemes
    ]


NOTE = "Accuracy and loss of the averaged model u_K, on test and training set; sent per worker."
CLIENTS = "Clients: each one's own model on its own test samples, all counted alike."


def caveat(summaries: Sequence[Row]) -> str:
    """What must be said of runs that were shortened for a trial; empty if none was."""
    scales = sorted({summary.get("scale", 1) for summary in summaries} - {1})
    if not scales:
        return ""
    shares = ", ".join(f"{scale:g}" for scale in scales)
    return f"scaled to {shares} of the recipe's budget and data"


def verdict(found: Sequence[Result]) -> str:
    """What was seen of partial against periodic averaging, in one plain sentence."""
    said = caveat([summary for result in found for summary in result.summaries])
    return f"{said.capitalize()}. {_seen(found)}" if said else _seen(found)


def _seen(found: Sequence[Result]) -> str:
    by_scheme = {result.scheme: result for result in found}
    if not {"periodic", "partial"} <= by_scheme.keys():
        key, name = main_metric(found)
        best = max(found, key=lambda result: mean(result.values(key)))
        return f"{best.scheme} ended with the highest {name}: {best.text(key, '.2f', 100)} %."
    partial, periodic = by_scheme["partial"], by_scheme["periodic"]
    return (
        f"{_traffic(partial, periodic)}, partial averaging ended {_accuracy(partial, periodic)}"
        f"{_discrepancy(partial, periodic)}."
    )


def main_metric(found: Sequence[Result]) -> tuple[str, str]:
    """The accuracy by which results are compared: of u or, where not all have one, of clients."""
    if all(result.values("accuracy") for result in found):
        return "accuracy", "accuracy"
    return "clients_accuracy", "mean accuracy of clients"


def _traffic(partial: Result, periodic: Result) -> str:
    sent = mean(periodic.values("bytes"))
    if not sent:
        return "While periodic averaging sent nothing yet"
    ratio = mean(partial.values("bytes")) / sent
    return "At the same traffic" if abs(ratio - 1) < 0.01 else f"At {ratio:.2f} times the traffic"


def _accuracy(partial: Result, periodic: Result) -> str:
    key, _ = main_metric([partial, periodic])
    ours, theirs = partial.values(key, 100), periodic.values(key, 100)
    gap = mean(ours) - mean(theirs)
    if abs(gap) < 0.005:
        return f"level with periodic averaging at {mean(ours):.2f} %"
    ahead = sum(one > other for one, other in zip(ours, theirs, strict=True))
    count = f"; ahead in {ahead} of {len(ours)} seeds" if len(ours) > 1 else ""
    return (
        f"{abs(gap):.2f} points of accuracy {'above' if gap > 0 else 'below'} periodic averaging "
        f"({mean(ours):.2f} % against {mean(theirs):.2f} %{count})"
    )


def _discrepancy(partial: Result, periodic: Result) -> str:
    ours, theirs = (each.values("peak_discrepancy") for each in (partial, periodic))
    if not (ours and theirs):
        return ""
    if mean(ours) == mean(theirs) == 0:
        return "; there was no discrepancy between the models"
    if mean(theirs) <= 1e-6 * mean(ours):
        return (
            "; the discrepancy of periodic averaging was measured right after averaging only, "
            "where it is 0"
        )
    ratio = mean(ours) / mean(theirs)
    return f"; the peak discrepancy between the models was {ratio:.2f} times that of periodic"
