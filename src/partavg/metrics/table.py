"""The table of metrics: an entry and a function for each, from measuring to charts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import get_args

from partavg.config import LocalAccuracy
from partavg.metrics.metric import Column, Kind, Measure, Metric, Row, Value
from partavg.metrics.moment import Moment
from partavg.registry import Names


def presented() -> list[Metric]:
    """All metrics in the order of tables and charts: results first, costs last."""
    return sorted(METRICS.values(), key=_rank)


def columns(summaries: Iterable[Row]) -> list[Column]:
    """The columns of a comparison: the usual ones, and those from outside that a summary has."""
    known = {key for summary in summaries for key in summary}
    return [
        column
        for metric in presented()
        for column in metric.columns
        if not (is_extra(metric.key) or metric.key in _OF_CLIENTS) or column.key in known
    ]


def is_extra(key: str) -> bool:
    """Whether a metric came from outside: it is measured where `metrics.extra` names it."""
    return key not in _OWN


def summarize(rows: Sequence[Row], ended: Row) -> Row:
    """What a summary says of a run, from its rows and what was measured at its end."""
    found: list[tuple[Metric, Row]] = []
    for key in dict.fromkeys([*rows[-1], *METRICS]):
        if key in METRICS:
            values = [row[key] for row in rows if row.get(key) is not None]
            found.append((METRICS[key], METRICS[key].summarized(values)))
    found += [(METRICS[key], {key: value}) for key, value in ended.items()]
    return {
        key: v for _, kept in sorted(found, key=lambda f: _rank(f[0])) for key, v in kept.items()
    }


def _rank(metric: Metric) -> int:
    return get_args(Kind).index(metric.kind)


def _discrepancy(at: Moment) -> Value:
    return at.columns_apart.sum() if at.due(at.options.discrepancy_every) else None


def _discrepancy_parts(at: Moment) -> Value:
    wanted = at.options.discrepancy_parts and at.due(at.options.discrepancy_every)
    return at.simulation.per_part(at.columns_apart) if wanted else None


def _of_average(key: str) -> Measure:
    """What the averaged model reaches on the test set."""
    return lambda at: getattr(at.on_test, key) if at.evaluates_average else None


def _train_loss(at: Moment) -> Value:
    return at.on_train.loss if at.train and not at.simulation.local else None


def _smallest_local(at: Moment) -> Value:
    return min(found.loss for found in at.simulation.evaluate_workers(at.round_samples))


def _timings(at: Moment) -> Value:
    return {phase: round(seconds, 3) for phase, seconds in at.timings.items()} or None


def _locals() -> Iterator[Metric]:
    """The accuracy of local models, as seen in several ways."""
    views: dict[LocalAccuracy, Callable[[list[float]], Value]] = {
        "best": max,
        "mean": lambda each: sum(each) / len(each),
        "first": lambda each: each[0],
        "all": list,
    }

    def seen(view: LocalAccuracy) -> Measure:
        def measure(at: Moment) -> Value:
            wanted = view in at.options.local_accuracy and at.evaluates
            return views[view](at.local_accuracies) if wanted else None

        return measure

    return (Metric(f"accuracy_{view}", seen(view), unit="%", chart="none") for view in views)


def _clients() -> Iterator[Metric]:
    """Clients' own models on their own test samples: the mean, the worst and how they spread."""

    def seen(view: Callable[[list[float]], float], key: str) -> Measure:
        def measure(at: Moment) -> Value:
            each = [getattr(found, key) for found in at.on_clients] if at.evaluates_clients else []
            known = [value for value in each if value is not None]
            return view(known) if known else None

        return measure

    own = "Each client's own model on its own test samples"
    yield Metric("clients_accuracy", seen(fmean, "accuracy"), "Accuracy of clients",
                 f"{own}, mean over clients, %", unit="%", column="clients' accuracy %",
                 form=".2f", progress="clients {:.1f}%")  # fmt: skip
    yield Metric("clients_accuracy_worst", seen(min, "accuracy"), "Accuracy of the worst client",
                 f"{own}, %", unit="%", column="worst client %", form=".2f")  # fmt: skip
    yield Metric("clients_accuracy_spread", seen(pstdev, "accuracy"), "Spread over clients",
                 f"{own}, standard deviation of accuracies, %", unit="%", kind="spread",
                 column="spread of clients %", form=".2f")  # fmt: skip
    yield Metric("clients_loss", seen(fmean, "loss"), "Test loss of clients",
                 f"{own}, mean over clients", chart="log")  # fmt: skip
    yield Metric("clients_left_out", _left_out, when="end", kind="spread",
                 column="clients left out", form=".0f", chart="none")  # fmt: skip


def _left_out(at: Moment) -> Value:
    """How many clients have no test samples; nothing where all have some."""
    return sum(not len(own) for own in at.test_split or ()) or None


_TAKEN = frozenset({"step", "steps", "scale", "stage", "part", "clients", "away", "sent",
                    "received", "seconds_per_exchange", "ranks"})  # fmt: skip
"""What rows and summaries hold beside metrics."""


class MetricNames(Names[Metric]):
    """Metrics by their keys."""

    def code(self, thing: Metric) -> object:
        """The function that measures."""
        return thing.measure if isinstance(thing, Metric) else thing

    def check(self, name: str, thing: Metric) -> None:
        """Raise a ValueError for what is no metric, or is called otherwise."""
        if not isinstance(thing, Metric):
            raise ValueError(f"{thing!r} cannot be a metric: give a partavg.Metric")
        if thing.key != name:
            raise ValueError(f"metric {name!r} has the key {thing.key!r}: they must be the same")
        taken = _TAKEN.union(*(metric.names for key, metric in self.items() if key != name))
        if clash := sorted(thing.names & taken):
            raise ValueError(
                f"metric {name!r} would write {clash[0]!r}, which is something else in a row or a "
                f"summary already: choose another name"
            )


METRICS = MetricNames("metric", {
    metric.key: metric
    for metric in (
        Metric("loss", lambda at: at.loss, "Training loss", "Mini-batch loss, mean over workers",
               better="lower", summary=(), chart="log", progress="loss {:.3f}"),
        Metric("lr", lambda at: at.record.lr, summary=(), chart="none"),
        Metric("bytes", lambda at: at.record.bytes, unit="MB", kind="cost", column="MB sent",
               form=".1f", chart="none"),
        Metric("messages", lambda at: at.record.messages, kind="cost", column="messages sent",
               form=".0f", chart="none"),
        Metric("discrepancy", _discrepancy, "Discrepancy",
               "(1/m) Σ ‖u_k − x_i‖², after each step", kind="spread", better="lower",
               summary=("mean", "peak"),
               column="discrepancy", form="#.3g", chart="log", progress="discrepancy {:.3g}"),
        Metric("discrepancy_parts", _discrepancy_parts, kind="spread", summary=(), chart="none"),
        Metric("accuracy", _of_average("accuracy"), "Accuracy",
               "Averaged model u_k on the test set, %", unit="%", column="accuracy %", form=".2f",
               progress="acc {:.1f}%"),
        Metric("test_loss", _of_average("loss"), "Test loss",
               "Averaged model u_k on the test set", better="lower", chart="log"),
        *_clients(),
        *_locals(),
        Metric("loss_smallest_local", _smallest_local, when="round", summary=(), chart="none"),
        Metric("loss_global", lambda at: at.simulation.evaluate(at.round_samples).loss,
               when="round", summary=(), chart="none"),
        Metric("train_loss", _train_loss, when="end",
               column="training loss", form=".3f", chart="none"),
        Metric("discrepancy_due", None, "Discrepancy of the part that is due",
               "Federated: just before it is averaged", kind="spread", summary=(), chart="log"),
        Metric("seconds", lambda at: round(at.seconds, 3), "Seconds per exchange",
               "Federated: until all answered", kind="cost", when="end", column="seconds",
               form=".1f"),
        Metric("timings", _timings, kind="cost", when="end", chart="none"),
    )
})  # fmt: skip
"""All metrics, in the order of a row's keys."""

_OWN = frozenset(METRICS)
_OF_CLIENTS = frozenset(metric.key for metric in _clients())
