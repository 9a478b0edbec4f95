"""Comparisons: the same task from the same start under several schemes and seeds."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from partavg.config import Config
from partavg.config_toml import differences
from partavg.folder import RunFolder
from partavg.metrics.metric import Metric, Row, distinct, number, rounded
from partavg.recipe import Recipe, key_of
from partavg.sentences import shown

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
    check_taken(recipe, schemes)
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
        raise ValueError(f"scheme {shown(scheme)} cannot name a folder: use letters and digits")


def configured(recipe: Recipe, scheme: str) -> Config:
    """The settings of a scheme; a name of the recipe's own sets nothing by itself."""
    config = recipe.config(scheme)
    averaging = config.averaging
    if scheme in recipe.schemes and not _says_parts(scheme):
        return config
    interval, parts = intervals(scheme, averaging.interval)
    partition = "whole" if parts == 1 else averaging.partition
    averaging = replace(averaging, interval=interval, parts=parts, partition=partition, offsets=())
    return replace(config, averaging=averaging)


def check_taken(recipe: Recipe, schemes: Sequence[str]) -> None:
    """Raise a ValueError for a setting given on the command line that every scheme sets itself."""
    own = [set(differences(recipe.config(name), configured(recipe, name))) for name in schemes]
    for override in recipe.overrides:
        key = key_of(override)
        if all(key in keys for keys in own):
            raise ValueError(
                f"{override.strip()} would be taken by no run: {key} is what a scheme sets "
                f"({', '.join(schemes)}); leave it out, or use a scheme like 4-parts"
            )


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
    if scheme is None:
        return recipe.config()
    check_scheme_name(scheme)
    config = configured(recipe, scheme)
    check_taken(recipe, [scheme])
    return config


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
    seeds: tuple[int, ...] = ()
    """Of the summaries; where they are not known, they are counted."""
    metrics: tuple[Metric, ...] = ()
    """Those that the runs were asked for."""

    def values(self, key: str, scale: float = 1.0) -> list[float]:
        """One number of each summary that has it."""
        return list(self.by_seed(key, scale).values())

    def by_seed(self, key: str, scale: float = 1.0) -> dict[int, float]:
        """The same, with the seeds."""
        seeds = self.seeds or range(len(self.summaries))
        pairs = zip(seeds, self.summaries, strict=True)
        return {seed: one[key] * scale for seed, one in pairs if one.get(key) is not None}

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
        return f"{center} ± {rounded(stdev(values)):{alike}}"


def results(entries: Sequence[StartedRun]) -> list[Result]:
    """The results of the finished runs of a comparison, scheme by scheme."""
    finished: dict[str, list[StartedRun]] = {entry.scheme: [] for entry in entries}
    for entry in entries:
        if entry.folder.finished:
            finished[entry.scheme].append(entry)
    return [
        Result(
            scheme,
            tuple(entry.folder.summary() for entry in runs),
            tuple(entry.seed for entry in runs),
            tuple(distinct(metric for entry in runs for metric in entry.folder.metrics())),
        )
        for scheme, runs in finished.items()
    ]


NOTE = "Results are of the averaged model u_K, on test and training set; sent per worker."

VALIDATION = "on validation samples held out of the training set"
"""Where runs were judged that choose settings, and not where results are."""

CLIENTS = "Clients: each one's own model on its own test samples, all counted alike."


def note(found: Sequence[Result]) -> str:
    """What the results of some runs are of."""
    judged = _judged(summary for result in found for summary in result.summaries)
    if mixed(found):
        return f"{NOTE} Some are {VALIDATION} and not on the test set: they are not compared."
    return NOTE.replace("on test and training set", VALIDATION) if "validation" in judged else NOTE


def mixed(found: Sequence[Result]) -> bool:
    """Whether some runs were judged on validation samples and others on the test set."""
    return len(_judged(summary for result in found for summary in result.summaries)) > 1


def _judged(summaries: Iterable[Row]) -> set[str]:
    return {str(summary.get("judged_on", "test")) for summary in summaries}


def caveat(summaries: Sequence[Row]) -> str:
    """What must be said of runs that are no full trial on the test set; empty if all are."""
    scales = sorted({summary.get("scale", 1) for summary in summaries} - {1})
    shares = ", ".join(f"{scale:g}" for scale in scales)
    said = [f"scaled to {shares} of the recipe's budget and data"] if scales else []
    said += [f"judged {VALIDATION}"] if _judged(summaries) == {"validation"} else []
    return ", ".join(said)
