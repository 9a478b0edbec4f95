"""The table of metrics: an entry and a function for each, from measuring to charts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import log
from statistics import fmean, pstdev
from typing import get_args

from partavg.config import LocalAccuracy
from partavg.evaluation import Evaluation
from partavg.metrics.metric import Column, Kind, Measure, Metric, Row, Value
from partavg.metrics.moment import Moment
from partavg.metrics.names import MetricNames
from partavg.scores.classes import (
    accuracy,
    binary_accuracy,
    f1,
    perplexity,
    token_accuracy,
    top_k,
)
from partavg.scores.errors import mae, mse
from partavg.scores.score import POSITIVE, SHARE


def presented(asked: Iterable[Metric] = ()) -> list[Metric]:
    """All metrics in the order of tables and charts: results first, costs last.

    Those that runs `asked` for are shown as they say, whatever is registered under their names.
    """
    return sorted(_known(asked).values(), key=_rank)


def columns(summaries: Iterable[Row], asked: Iterable[Metric] = ()) -> list[Column]:
    """The columns of a comparison: the usual ones, and those of metrics that a summary has.

    The test loss is one of those that are compared by it, as texts are; what only texts have is
    one of texts.
    """
    each, asked = list(summaries), list(asked)
    known = {key for summary in each for key in summary}
    hidden = set() if _of_texts(each) else {"test_loss", "bits_per_byte", "tokens"}
    if main := main_metric(each, asked):
        hidden -= {main.key}
    return [
        column
        for metric in presented(asked)
        if metric.key not in hidden
        for column in metric.columns
        if column.key in known
        or not (is_extra(metric.key) or metric.sums or metric.key in (*OF_CLIENTS, *OF_PRIVACY))
    ]


def is_extra(key: str) -> bool:
    """Whether a metric is measured only where `metrics.extra` names it."""
    return key not in METRICS.always


def _known(asked: Iterable[Metric]) -> dict[str, Metric]:
    return {**METRICS, **{metric.key: metric for metric in asked}}


def main_metric(summaries: Iterable[Row], asked: Sequence[Metric] = ()) -> Metric | None:
    """The metric that runs are compared by: the first that all have and that says what is better.

    Those that were asked for come first, as they were listed, then accuracy, that of clients, test
    and training loss, of texts the test loss first; None where there is none.
    """
    each = list(summaries)
    first = () if _of_texts(each) else ("accuracy", "clients_accuracy")
    usual = [METRICS[key] for key in (*first, "test_loss", "train_loss")]
    for metric in (*asked, *usual):
        if each and metric.better != "neither" and all(metric.key in summary for summary in each):
            return metric
    return None


def _of_texts(summaries: Sequence[Row]) -> bool:
    return bool(summaries) and all("tokens" in summary for summary in summaries)


def summarize(rows: Sequence[Row], ended: Row, asked: Iterable[Metric] = ()) -> Row:
    """What a summary says of a run, from its rows and what was measured at its end."""
    known = _known(asked)
    found: list[tuple[Metric, Row]] = []
    for key in dict.fromkeys([*rows[-1], *known]):
        if key in known:
            values = [row[key] for row in rows if row.get(key) is not None]
            found.append((known[key], known[key].summarized(values)))
    found += [(known[key], {key: value}) for key, value in ended.items()]
    return {
        key: v for _, kept in sorted(found, key=lambda f: _rank(f[0])) for key, v in kept.items()
    }


def _rank(metric: Metric) -> int:
    return get_args(Kind).index(metric.kind)


def _discrepancy(at: Moment) -> Value:
    wanted = at.due(at.options.discrepancy_every) and not at.private
    return at.columns_apart.sum() if wanted else None


def _discrepancy_parts(at: Moment) -> Value:
    wanted = at.options.discrepancy_parts and at.due(at.options.discrepancy_every)
    wanted = wanted and not at.private
    return at.simulation.per_part(at.columns_apart) if wanted else None


def _test_loss(at: Moment) -> Value:
    return at.on_test.loss if at.evaluates_average else None


def _bits_per_byte(at: Moment) -> Value:
    known = at.evaluates_average and at.bytes_per_token
    return at.on_test.loss / (log(2) * known) if known else None


def _tokens(at: Moment) -> Value:
    """Of all workers; one that rests, or is away, sees none.

    Of a private run it is what is expected: how many were drawn is not told.
    """
    each = at.simulation.samples.tokens
    if each is None or not (at.evaluates or at.step == at.steps):
        return None
    spent, clients = at.simulation.spending, len(at.simulation.split)
    steps: float = at.simulation.steps_taken()
    if spent and spent.fraction < 1:
        steps = spent.fraction * clients * at.step
    return round(steps * at.simulation.batch * each)


def _train_loss(at: Moment) -> Value:
    shown = at.train and not (at.simulation.local or at.private)
    return at.on_train.loss if shown else None


def _spent_is_told(at: Moment) -> bool:
    return at.step == at.steps or at.due(at.options.evaluate_every)


def _epsilons() -> Iterator[Metric]:
    """What private runs spent; noise of each client's own promises something else."""

    def seen(key: str) -> Measure:
        def measure(at: Moment) -> Value:
            spent = at.simulation.spending
            told = spent and spent.key == key and _spent_is_told(at)
            return spent.epsilon(at.step) if spent and told else None

        return measure

    yield Metric("epsilon", seen("epsilon"), "ε", "Of private runs: what was spent, at their δ",
                 kind="cost", column="ε", form=".3g", progress="ε {:.2f}")  # fmt: skip
    yield Metric("epsilon_local", seen("epsilon_local"), "ε of local noise",
                 "Of what each client told the server, at their δ",
                 kind="cost", column="local ε", form=".3g", progress="local ε {:.2f}")  # fmt: skip


def _delta(at: Moment) -> Value:
    spent = at.simulation.spending
    return spent.privacy.delta if spent and _spent_is_told(at) else None


def _smallest_local(at: Moment) -> Value:
    return min(found.loss for found in at.simulation.evaluate_workers(at.round_samples))


def _timings(at: Moment) -> Value:
    return {phase: round(seconds, 3) for phase, seconds in at.timings.items()} or None


_LOCAL: dict[LocalAccuracy, Callable[[list[float]], Value]] = {
    "best": max,
    "mean": lambda each: sum(each) / len(each),
    "first": lambda each: each[0],
    "all": list,
}
"""How the accuracies of local models are seen."""


def of_local(accuracies: list[float], wanted: Iterable[LocalAccuracy]) -> Row:
    """The accuracies of local models as they are wanted."""
    return {f"accuracy_{view}": _LOCAL[view](accuracies) for view in wanted if accuracies}


def _locals() -> Iterator[Metric]:
    """The accuracy of local models, as seen in several ways."""

    def seen(view: LocalAccuracy) -> Measure:
        def measure(at: Moment) -> Value:
            wanted = view in at.options.local_accuracy and at.evaluates
            found = at.local_accuracies if wanted else []
            return _LOCAL[view](found) if found else None

        return measure

    return (Metric(f"accuracy_{view}", seen(view), unit="%", chart="none") for view in _LOCAL)


_CLIENTS: dict[str, tuple[Callable[[list[float]], float], str]] = {
    "clients_accuracy": (fmean, "accuracy"),
    "clients_accuracy_worst": (min, "accuracy"),
    "clients_accuracy_spread": (pstdev, "accuracy"),
    "clients_loss": (fmean, "loss"),
}
"""How the evaluations of clients are seen."""
SINGLED_OUT = ("clients_accuracy_worst", "clients_accuracy_spread")
"""Those that tell of single clients, which private runs do not."""


def of_clients(found: Iterable[Evaluation]) -> Row:
    """What is said of clients' own models on their own test samples, where it could be measured."""
    each = list(found)
    seen = {key: _of_clients(key, each) for key in _CLIENTS}
    return {key: value for key, value in seen.items() if value is not None}


def _of_clients(key: str, found: Sequence[Evaluation]) -> float | None:
    view, what = _CLIENTS[key]
    known = [value for each in found if (value := getattr(each, what)) is not None]
    return view(known) if known else None


def _clients() -> Iterator[Metric]:
    """Clients' own models on their own test samples: the mean, the worst and how they spread."""

    def seen(key: str) -> Measure:
        return lambda at: (
            _of_clients(key, at.on_clients)
            if at.evaluates_clients and not (at.private and key in SINGLED_OUT)
            else None
        )

    own = "Each client's own model on its own test samples"
    yield Metric("clients_accuracy", seen("clients_accuracy"), "Accuracy of clients",
                 f"{own}, mean over clients, %", unit="%", column="clients' accuracy %",
                 form=".2f", progress="clients {:.1f}%", better="higher")  # fmt: skip
    yield Metric("clients_accuracy_worst", seen("clients_accuracy_worst"),
                 "Accuracy of the worst client", f"{own}, %", unit="%",
                 column="worst client %", form=".2f", better="higher")  # fmt: skip
    yield Metric("clients_accuracy_spread", seen("clients_accuracy_spread"), "Spread over clients",
                 f"{own}, standard deviation of accuracies, %", unit="%", kind="spread",
                 column="spread of clients %", form=".2f", better="lower")  # fmt: skip
    yield Metric("clients_loss", seen("clients_loss"), "Test loss of clients",
                 f"{own}, mean over clients", chart="log", better="lower")  # fmt: skip
    yield Metric("clients_left_out", _left_out, when="end", kind="spread",
                 column="clients left out", form=".0f", chart="none")  # fmt: skip


def _left_out(at: Moment) -> Value:
    """How many clients have no test samples; nothing where all have some."""
    return sum(not len(own) for own in at.test_split or ()) or None


_ON_TEST = "Averaged model u_k on the test set"
_ALWAYS = (
    Metric("loss", lambda at: None if at.private else at.loss, "Training loss",
           "Mini-batch loss, mean over workers", summary=(), chart="log", progress="loss {:.3f}"),
    Metric("lr", lambda at: at.record.lr, summary=(), chart="none"),
    Metric("bytes", lambda at: at.record.bytes, unit="MB", kind="cost", column="MB sent",
           form=".1f", chart="none"),
    Metric("messages", lambda at: at.record.messages, kind="cost", column="messages sent",
           form=".0f", chart="none"),
    Metric("discrepancy", _discrepancy, "Discrepancy",
           "(1/m) Σ ‖u_k − x_i‖², after each step", kind="spread", summary=("mean", "peak"),
           column="discrepancy", form="#.3g", chart="log", progress="discrepancy {:.3g}"),
    Metric("discrepancy_parts", _discrepancy_parts, kind="spread", summary=(), chart="none"),
    Metric("accuracy", None, "Accuracy", f"{_ON_TEST}, %", unit="%", column="accuracy %",
           form=".2f", progress="acc {:.1f}%", better="higher", sums=accuracy, within=SHARE),
    Metric("test_loss", _test_loss, "Test loss", _ON_TEST, column="test loss", form=".4f",
           chart="log", better="lower"),
    Metric("bits_per_byte", _bits_per_byte, "Bits per byte", f"{_ON_TEST}, of a text",
           column="bits per byte", form=".4f", chart="log", progress="bits/byte {:.3f}",
           better="lower"),
    *_epsilons(),
    Metric("delta", _delta, "δ", "At which an ε is", kind="cost", column="at δ", form=".1e",
           chart="none", progress="at δ = {:.2g}"),
    Metric("tokens", _tokens, unit="M", kind="cost", column="M tokens seen", form=".2f",
           chart="none"),
    *_locals(),
    *_clients(),
    Metric("loss_smallest_local", _smallest_local, when="round", summary=(), chart="none"),
    Metric("loss_global", lambda at: at.simulation.evaluate(at.round_samples).loss,
           when="round", summary=(), chart="none"),
    Metric("train_loss", _train_loss, when="end",
           column="training loss", form=".3f", chart="none", better="lower"),
    Metric("discrepancy_due", None, "Discrepancy of the part that is due",
           "Federated: just before it is averaged", kind="spread", summary=(), chart="log"),
    Metric("seconds", lambda at: round(at.seconds, 3), "Seconds per exchange",
           "Federated: until all answered", kind="cost", when="end", column="seconds",
           form=".1f"),
    Metric("timings", _timings, kind="cost", when="end", chart="none"),
)  # fmt: skip
"""What runs measure without being asked, in the order of a row's keys."""

OF_PRIVACY = ("epsilon", "epsilon_local", "delta")
"""Those of private runs."""

OF_CLIENTS = frozenset(metric.key for metric in _clients())
"""Those of clients' own models."""

_ASKED = (
    Metric("top_k", title="Top-{k} accuracy", note=f"{_ON_TEST}, %", unit="%",
           column="top-{k} %", form=".2f", progress="top {:.1f}%", better="higher",
           sums=top_k, within=SHARE),
    Metric("token_accuracy", title="Token accuracy", note=f"{_ON_TEST}, %", unit="%",
           column="token accuracy %", form=".2f", progress="token-acc {:.1f}%", better="higher",
           sums=token_accuracy, within=SHARE),
    Metric("binary_accuracy", title="Binary accuracy", note=f"{_ON_TEST}, %", unit="%",
           column="binary accuracy %", form=".2f", progress="binary-acc {:.1f}%", better="higher",
           sums=binary_accuracy, within=SHARE),
    Metric("f1", title="F1, {average}", note=_ON_TEST, column="F1 {average}", form=".3f",
           progress="F1 {:.3f}", better="higher", sums=f1, within=SHARE),
    Metric("perplexity", title="Perplexity", note=_ON_TEST, column="perplexity", form=".2f",
           chart="log", progress="perplexity {:.4g}", better="lower", sums=perplexity,
           finish=lambda total, count: (total / count).exp(), within=POSITIVE),
    Metric("mse", title="Mean squared error", note=_ON_TEST, column="MSE", chart="log",
           progress="MSE {:.4g}", better="lower", sums=mse, within=POSITIVE),
    Metric("mae", title="Mean absolute error", note=_ON_TEST, column="MAE", chart="log",
           progress="MAE {:.4g}", better="lower", sums=mae, within=POSITIVE),
)  # fmt: skip
"""What they measure where `metrics.extra` names it."""

METRICS = MetricNames(always=_ALWAYS, asked=_ASKED)
"""All metrics."""
