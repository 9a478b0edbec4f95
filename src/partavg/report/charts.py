"""Which charts a report has, and the lines of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from partavg.metrics.metric import Metric
from partavg.metrics.table import presented
from partavg.report import curves
from partavg.report.axes import Unit, far_apart, unit_of_bytes
from partavg.report.curves import Curve
from partavg.report.runs import Group, ShownRun

_ROUNDS = 6  # in a window in which single rounds are to be seen
_EXPLODED = 1e4  # times the median
_LEAST = 1e-12  # what is sent before anything is has no place on a logarithmic scale
_STEP, _ACCURACY, _BEST = "step", "Accuracy, %", "best local model"


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a run or, if `run` is None, the mean of a group."""

    group: int
    run: int | None
    curve: Curve
    other: bool = False
    """Whether it is the second of two kinds of lines."""
    seed: bool = False
    """Whether the group has a mean, too."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a common x axis."""

    key: str
    title: str
    note: str
    x_label: str
    y_label: str
    lines: list[Line]
    log: bool = False
    """Whether a logarithmic scale may be asked for."""
    second: str = ""
    """What the second kind of lines, which is dashed, shows."""
    log_x: bool = False
    """Whether x has a logarithmic scale."""

    @property
    def unit(self) -> str:
        """The unit of y, if it has one."""
        return "%" if self.y_label.endswith("%") else ""

    @property
    def exploded(self) -> bool:
        """Whether some values leave all others none of the height, as those of a divergence."""
        values = np.abs(np.concatenate([line.curve.y for line in self.lines]))
        return self.log and bool(values.max() > _EXPLODED * np.median(values) > 0)

    @property
    def once(self) -> bool:
        """Whether nothing was measured more than once, so that there is no curve to draw."""
        return all(len(line.curve.x) == 1 for line in self.lines)


def charts(groups: Sequence[Group]) -> list[Chart]:
    """Every chart that there is something to draw in: the metrics', others next to them."""
    before = {"discrepancy": _windows(groups)}
    after = {
        "accuracy": [_over_bytes(groups)],
        "test_loss": _of_texts(groups),
        "discrepancy": [_rounds(groups), _locals(groups)],
    }
    found = [
        chart
        for metric in presented(metric for group in groups for metric in group.metrics)
        if metric.chart != "none"
        for chart in (
            *before.get(metric.key, ()),
            _against_steps(metric, groups),
            *after.get(metric.key, ()),
        )
    ]
    return [chart for chart in found if chart.lines]


def lines(
    groups: Sequence[Group], take: Callable[[ShownRun], Curve], *, other: bool = False
) -> list[Line]:
    """A line per run; where a group has several, their mean as well."""
    found, number = [], 0
    for place, group in enumerate(groups):
        taken = {number + index: take(run) for index, run in enumerate(group.runs)}
        number += len(group.runs)
        drawn = {run: curve for run, curve in taken.items() if len(curve.x)}
        seed = len(group.runs) > 1
        if seed and drawn:
            found.append(Line(place, None, curves.mean(list(drawn.values())), other))
        found += [Line(place, run, curve, other, seed) for run, curve in drawn.items()]
    return found


def _against_steps(metric: Metric, groups: Sequence[Group]) -> Chart:
    """A metric against the step."""
    key, scale, title = metric.key, metric.scale, metric.title or metric.key
    drawn = lines(groups, lambda run: curves.against_steps(run, key).scaled(1, scale))
    label = f"{title}, {metric.unit}" if metric.unit else title
    note = metric.note.replace("at their δ", f"at δ = {_deltas(groups)}")
    return Chart(key, title, note, _STEP, label, drawn, metric.chart == "log")


def _deltas(groups: Sequence[Group]) -> str:
    """The δ of private runs; an ε means nothing without."""
    settings = [run.settings for group in groups for run in group.runs]
    found = {one.get("privacy.delta", 1e-5) for one in settings if "privacy.clip" in one}
    return " and ".join(f"{delta:g}" for delta in sorted(found, reverse=True))


def _over_bytes(groups: Sequence[Group]) -> Chart:
    unit = _unit_sent(groups)
    drawn = lines(
        groups, lambda run: curves.against(run, "accuracy", "bytes").scaled(1 / unit.size, 100)
    )
    note = "Averaged model u_k on the test set, %, against what one worker has sent"
    title = "Accuracy against traffic"
    return _spread_out(Chart("accuracy_bytes", title, note, f"{unit.name} sent", _ACCURACY, drawn))


def _unit_sent(groups: Sequence[Group]) -> Unit:
    sent = (run.series["bytes"].values for g in groups for run in g.runs if "bytes" in run.series)
    return unit_of_bytes(max((float(values.max()) for values in sent), default=0.0))


def _of_texts(groups: Sequence[Group]) -> list[Chart]:
    """The test loss of language models against all that it costs."""
    if not any("tokens" in run.series for group in groups for run in group.runs):
        return []
    unit = _unit_sent(groups)
    axes: tuple[tuple[str, str, str, Callable[[ShownRun], Curve]], ...] = (
        ("tokens", "million tokens", "the tokens that all workers have seen",
         lambda run: curves.against(run, "test_loss", "tokens").scaled(1e-6, 1)),
        ("bytes", f"{unit.name} sent", "what one worker has sent",
         lambda run: curves.against(run, "test_loss", "bytes").scaled(1 / unit.size, 1)),
        ("seconds", "seconds", "the time of a run, spread evenly over its steps",
         lambda run: curves.against_seconds(run, "test_loss")),
    )  # fmt: skip
    return [
        _spread_out(
            Chart(
                f"test_loss_{key}",
                f"Test loss against {'traffic' if key == 'bytes' else key}",
                f"Averaged model u_k on the test set, against {what}",
                label,
                "Test loss",
                lines(groups, take),
                log=True,
            )
        )
        for key, label, what, take in axes
    ]


def _spread_out(chart: Chart) -> Chart:
    """The same on a logarithmic axis, if one line would leave the others no room."""
    if not far_apart([float(line.curve.x[-1]) for line in chart.lines]):
        return chart
    seen = [replace(line, curve=line.curve.within(_LEAST, inf)) for line in chart.lines]
    kept = [line for line in seen if len(line.curve.x)]
    return replace(chart, x_label=f"{chart.x_label} (logarithmic)", lines=kept, log_x=True)


def _rounds(groups: Sequence[Group]) -> Chart:
    """The paper's figure of spikes: what averaging does to the loss at the end of a round."""
    drawn = lines(groups, lambda run: curves.against_steps(run, "loss_global"))
    drawn += lines(groups, lambda run: curves.against_steps(run, "loss_smallest_local"), other=True)
    title = "Global against smallest local loss"
    note = "All training samples, at the end of a round. Dashed: the best local model"
    label = "Training loss"
    return Chart("round_losses", title, note, _STEP, label, drawn, log=True, second=_BEST)


def _locals(groups: Sequence[Group]) -> Chart:
    drawn = lines(groups, lambda run: curves.against_steps(run, "accuracy_mean").scaled(1, 100))
    drawn += lines(
        groups, lambda run: curves.against_steps(run, "accuracy_best").scaled(1, 100), other=True
    )
    note = "On the test set, %: their mean. Dashed: the best of them"
    title = "Accuracy of local models"
    return Chart("accuracy_local", title, note, _STEP, _ACCURACY, drawn, second=_BEST)


def _windows(groups: Sequence[Group]) -> list[Chart]:
    """The discrepancy in a few rounds, early and in mid training, as in the paper's figure."""
    runs = [run for group in groups for run in group.runs]
    interval = max((int(run.settings.get("averaging.interval", 1)) for run in runs), default=1)
    last = max((run.series["discrepancy"].steps[-1] for run in runs if "discrepancy" in run.series),
               default=0)  # fmt: skip
    middle = int(0.4 * last) // interval * interval  # rates are often lowered at half
    rounds = min(_ROUNDS, middle // interval)
    if interval < 2 or rounds < 2:
        return []
    windows = (
        ("discrepancy_early", "Discrepancy, early", 0),
        ("discrepancy_middle", "Discrepancy, mid-training", middle),
    )
    found = [_window(groups, *window, rounds, interval) for window in windows]
    return found if all(_fine(chart, 2 * rounds) for chart in found) else []


def _window(
    groups: Sequence[Group], key: str, title: str, start: int, rounds: int, interval: int
) -> Chart:
    stop = start + rounds * interval
    drawn = lines(groups, lambda run: curves.against_steps(run, "discrepancy").within(start, stop))
    note = f"Steps {start} to {stop}: {rounds} rounds of {interval} steps"
    return Chart(key, title, note, _STEP, "Discrepancy", drawn)


def _fine(chart: Chart, points: int) -> bool:
    """Whether single rounds can be told apart."""
    return any(len(line.curve.x) >= points for line in chart.lines)
