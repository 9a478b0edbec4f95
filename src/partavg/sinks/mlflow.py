"""Metrics for MLflow, while a run goes on."""

import os
from importlib import import_module
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from partavg.metrics.metric import Row
from partavg.own_version import own_version
from partavg.sinks.bookmark import Bookmark
from partavg.sinks.needs import check_installed
from partavg.sinks.sink import RunInfo, numbers, outcome

_SEND_EVERY = 5.0  # seconds: a request for each row would keep training waiting
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # that MLflow takes at a time
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


class MLflow:
    """Logs every number of a row at its step, the rows of a few seconds at a time; no lists.

    What is not given is as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say. `run` names the run,
    otherwise its folder does; the tag `group` is the same for all runs of one comparison, whose
    folder it names if `group` does not.
    """

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        group: str | None = None,
        run: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        check_installed("mlflow", "MLflow")
        if tracking_uri and urlsplit(tracking_uri).password:
            raise ValueError(
                "tracking_uri holds a password, which the run folder would keep: leave it out, and "
                "set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_PASSWORD"
            )
        self._uri, self._experiment, self._group = tracking_uri, experiment, group
        self._called, self._tags = run, tags or {}
        self._client: Any = None
        self._error: BaseException | None = None

    def begin(self, about: RunInfo) -> None:
        """Begin a run, or go on with the one of before."""
        self._client = import_module("mlflow").MlflowClient(self._uri)
        self._bookmark = Bookmark(about, "mlflow")
        self._id = self._bookmark.run or self._new(about)
        if self._bookmark.resumed:
            self._client.update_run(self._id, status="RUNNING")
        self._waiting: list[Any] = []
        self._sent = monotonic()
        self._reachable, self._error, self._step = True, None, about.step
        for row in self._bookmark.begin(self._id):
            self._add(row)

    def take(self, row: Row) -> None:
        """Send the numbers of a row, or keep them for a moment."""
        if self._bookmark.is_new():
            self._add(row)

    def stopped(self, error: BaseException) -> None:
        """Remember why there will be no summary."""
        self._error = error

    def end(self, summary: Row | None) -> None:
        """Send what is left and the summary, and say how the run ended."""
        if self._reachable:  # if not, that was just tried, for minutes
            self._send()
            self._finish(summary)

    def _finish(self, summary: Row | None) -> None:
        ended, reason = outcome(summary, self._error)
        self._client.set_tag(self._id, "outcome", ended)
        if reason or self._bookmark.resumed:  # there may be one of before
            self._client.set_tag(self._id, "reason", reason)
        self._client.log_batch(self._id, metrics=self._points(summary or {}, "summary/"))
        self._client.set_terminated(self._id, _STATUS[ended])

    def _new(self, about: RunInfo) -> str:
        group = self._group or about.group
        run = self._client.create_run(
            self._experiment_id(),
            run_name=self._called or about.name,
            tags={"partavg": own_version(), **({"group": group} if group else {})} | self._tags,
        )
        param = import_module("mlflow.entities").Param
        settings = [param(key, str(value)) for key, value in about.settings.items()]
        for first in range(0, len(settings), _MOST_PARAMS):
            some = settings[first : first + _MOST_PARAMS]
            self._client.log_batch(run.info.run_id, params=some)
        return str(run.info.run_id)

    def _experiment_id(self) -> str:
        """The experiment by its name, made if there is none."""
        if not self._experiment and (known := os.environ.get("MLFLOW_EXPERIMENT_ID")):
            return known
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "partavg"
        found = self._client.get_experiment_by_name(name)
        try:
            return str(found.experiment_id if found else self._client.create_experiment(name))
        except import_module("mlflow.exceptions").MlflowException:  # another run made it just now?
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _add(self, row: Row) -> None:
        self._step = row["step"]
        self._waiting += self._points(row)
        if len(self._waiting) >= _MOST_METRICS or monotonic() - self._sent >= _SEND_EVERY:
            self._send()

    def _send(self) -> None:
        """Send all that waits."""
        self._reachable = False
        for first in range(0, len(self._waiting), _MOST_METRICS):
            some = self._waiting[first : first + _MOST_METRICS]
            self._client.log_batch(self._id, metrics=some)
        self._reachable = True
        self._waiting, self._sent = [], monotonic()
        self._bookmark.told()

    def _points(self, row: Row, prefix: str = "") -> list[Any]:
        point, now = import_module("mlflow.entities").Metric, int(time() * 1000)
        return [point(prefix + key, float(v), now, self._step) for key, v in numbers(row).items()]
