"""Metrics by their names, and those that somebody asks for: names, functions, with options."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from partavg.config import Component
from partavg.metrics.metric import Metric
from partavg.registry import Names, mismatch
from partavg.sentences import shown

_TAKEN = frozenset({"step", "steps", "scale", "stage", "part", "clients", "away", "sent",
                    "received", "late", "capped", "seconds_per_exchange", "ranks",
                    "judged_on"})  # fmt: skip
"""What rows and summaries hold beside metrics."""


class MetricNames(Names[Metric]):
    """Metrics by their keys; a function of (outputs, targets) is one, too."""

    common = ("key",)

    def __init__(self, always: Iterable[Metric], asked: Iterable[Metric]) -> None:
        own = {metric.key: metric for metric in always}
        super().__init__("metric", {**own, **{metric.key: metric for metric in asked}})
        self.always = frozenset(own)
        """What every run measures, where it can be."""

    def __setitem__(self, name: str, thing: Any) -> None:
        super().__setitem__(name, _metric(name, thing))

    def find(self, name: str, key: str = "") -> Metric:
        """The metric that is asked for by a name; a ValueError for one that every run has."""
        found: Any = super().find(name, key)
        metric = _metric(name.rpartition(":")[2], found)
        if metric.key in self.always and not metric.sums:
            where = f"{key} =" if key else "metric"
            raise ValueError(
                f"{where} {name!r} comes with the package: leave it out, other keys of [metrics] "
                f"say how often it is measured"
            )
        return metric

    def admitted(self, name: str, thing: Any) -> Metric:
        """A metric that was imported: it has its own key, a function the name it has there."""
        return _metric(name.rpartition(":")[2], thing)

    def code(self, thing: Any) -> Any:
        """The function that measures."""
        return thing.sums or thing.measure if isinstance(thing, Metric) else thing

    def check(self, name: str, thing: Any) -> None:
        """Raise a ValueError for what is no metric, or is called otherwise."""
        metric = _metric(name, thing)
        if metric.key != name:
            raise ValueError(f"metric {name!r} has the key {metric.key!r}: they must be the same")
        self._check_free(metric, {key: other for key, other in self.items() if key != name})

    def asked(self, wanted: Iterable[Any] | Mapping[str, Any]) -> tuple[Metric, ...]:
        """The metrics that a list names, in its order: none of them twice.

        It holds names, functions of (outputs, targets), Metrics and the Components of a recipe; a
        mapping gives them other keys.
        """
        if isinstance(wanted, str):
            raise ValueError(f"metrics {wanted!r} are no list: use [{wanted!r}]")
        if not isinstance(wanted, list | tuple | Mapping):
            raise ValueError(f"metrics {shown(wanted)} are no list: give names or functions in one")
        if isinstance(wanted, Mapping):
            listed = [
                _with_options(self._of(thing, key), {"key": key}) for key, thing in wanted.items()
            ]
        else:
            listed = [self._of(thing) for thing in wanted]
        others = {k: m for k, m in self.items() if k in self.always and not m.sums}
        for place, metric in enumerate(listed):
            self._check_free(metric, others)
            if any(metric.key == other.key for other in listed[:place]):
                raise ValueError(
                    f"metric {metric.key!r} is asked for twice: give one of them another key, as "
                    f'in {{name = "{metric.key}", key = "another"}}'
                )
        return tuple(listed)

    def _of(self, thing: Any, called: str = "") -> Metric:
        if isinstance(thing, Component):
            found = self.find(thing.name, "metrics.extra")
            return _with_options(found, thing.options)
        if isinstance(thing, str):
            return _with_options(self.find(thing), {})
        if isinstance(thing, Metric):
            return thing
        function, options = thing, {}
        if isinstance(thing, partial) and not thing.args:
            function, options = thing.func, thing.keywords
        for metric in self.values():
            if metric.sums is function:
                return _with_options(metric, options)
        own = getattr(function, "__name__", type(function).__name__)
        return _with_options(_metric(called or own, function), options)

    def _check_free(self, metric: Metric, others: Mapping[str, Metric]) -> None:
        taken = _TAKEN.union(*(other.names for other in others.values()))
        if clash := sorted(metric.names & taken):
            raise ValueError(
                f"metric {metric.key!r} would write {clash[0]!r}, which is something else in a row "
                f"or a summary already: choose another name"
            )


def _metric(key: str, thing: Any) -> Metric:
    """A metric as it is, or made of a function of (outputs, targets)."""
    if isinstance(thing, Metric):
        return thing
    if isinstance(thing, type) or not callable(thing):
        raise ValueError(
            f"{thing!r} cannot be a metric: give a partavg.Metric, or a function of (outputs, "
            f"targets) that returns a sum and a count"
        )
    if problem := mismatch(thing, None, None):
        raise ValueError(
            f"metric {key!r} cannot be called with (outputs, targets): {problem}; what is measured "
            f"of a run is a partavg.Metric"
        )
    note = "Averaged model u_k on the test set"
    return Metric(key, None, key, note, column=key, progress=f"{key} {{:.4g}}", sums=thing)


def _with_options(metric: Metric, options: Mapping[str, Any]) -> Metric:
    """A metric whose function gets options, and whose texts name them; perhaps with another key."""
    function: Any = metric.sums or metric.measure
    given = {name: value for name, value in options.items() if name != "key"}
    texts = {name: getattr(metric, name) for name in ("title", "note", "column", "progress")}
    for name, value in {**_defaults(function), **given}.items():
        texts = {key: text.replace(f"{{{name}}}", str(value)) for key, text in texts.items()}
    key = options.get("key", metric.key)
    if key != metric.key:
        texts |= {"title": key, "column": key if metric.column else ""}
        texts["progress"] = f"{key} {metric.progress.partition(' ')[2]}" if metric.progress else ""
    bound = partial(function, **given) if function and given else function
    changed: dict[str, Any] = {"key": key, **texts, "sums" if metric.sums else "measure": bound}
    return replace(metric, **changed)


def _defaults(function: Any) -> dict[str, Any]:
    """The options of a function, as they are if they are not given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
