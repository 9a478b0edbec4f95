"""The best row so far, and stopping when none is better for long."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from partavg.metrics.metric import Better, Metric, Row
from partavg.metrics.table import METRICS
from partavg.registry import check_name
from partavg.sentences import whole_number


@dataclass(slots=True)
class Best:
    """The best value of a metric so far, and after which step it was measured.

    >>> best = Best("accuracy", "higher")
    >>> [best.take({"step": k, "accuracy": a}) for k, a in enumerate([0.5, 0.4, 0.6], 1)]
    [True, False, True]
    >>> best.summary
    {'best_accuracy': 0.6, 'best_step': 3}
    """

    metric: str
    better: Better
    value: float | None = None
    step: int = 0

    @classmethod
    def of(cls, name: str, asked: Iterable[Metric] = ()) -> "Best":
        """By the metric of a name; a ValueError if it is not known, or does not say what is better.

        Those that a run `asked` for come first.
        """
        known = {**METRICS, **{metric.key: metric for metric in asked}}
        check_name("best", name, known)
        better = known[name].better
        if better == "neither":
            raise ValueError(
                f"best = {name!r} does not say which of two values is better: use a metric that "
                f"does, like accuracy, or partavg.Metric(…, better='lower')"
            )
        return cls(name, better)

    def take(self, row: Row) -> bool:
        """Whether a row is better than all before it; one without the metric is not."""
        value = row.get(self.metric)
        if value is None or (self.value is not None and not self._better(value, self.value)):
            return False
        self.value, self.step = value, row["step"]
        return True

    @property
    def summary(self) -> Row:
        """What a summary says of it."""
        if self.value is None:
            return {}
        return {f"best_{self.metric}": self.value, "best_step": self.step}

    def _better(self, one: float, other: float) -> bool:
        return one > other if self.better == "higher" else one < other


@dataclass(slots=True)
class Patience:
    """Stops when a metric was not better for `rows` measurements in a row.

    `follow(…, stop=Patience("accuracy", 5))` ends five evaluations after the best one. Of a metric
    of your own say which of two values is `better`, "higher" or "lower".

    >>> stop = Patience("test_loss", 2)
    >>> [stop({"step": k, "test_loss": loss}) for k, loss in enumerate([1.0, 0.9, 0.95, 0.9], 1)]
    [False, False, False, True]
    """

    metric: str
    rows: int
    better: Better | None = None
    _best: Best = field(init=False, repr=False)
    _waited: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.rows = whole_number(self.rows, "a patience of rows =", 1)
        if self.better not in (None, "higher", "lower"):
            raise ValueError(f"better = {self.better!r} is not known: use 'higher' or 'lower'")
        own = Best(self.metric, self.better) if self.better else None
        self._best = own or Best.of(self.metric)

    def __call__(self, row: Row) -> bool:
        """Whether it is time to stop, after a row."""
        if row.get(self.metric) is not None:
            self._waited = 0 if self._best.take(row) else self._waited + 1
        return self._waited >= self.rows
