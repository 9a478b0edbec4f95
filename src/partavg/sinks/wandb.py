"""Metrics for Weights & Biases, while a run goes on."""

import os
from importlib import import_module
from typing import Any

from partavg.metrics.metric import Row
from partavg.sinks.bookmark import Bookmark
from partavg.sinks.needs import check_installed
from partavg.sinks.sink import RunInfo, numbers, outcome

_USUALLY = {
    "console": "off",  # a progress bar is no log
    "quiet": True,
    "disable_git": True,  # the address of a repository may hold a token
}
"""What is so unless the user's environment says otherwise."""


class WandB:
    """Logs every number of a row at its step; lists are left out.

    What is not given is as its environment variables and settings files say: WANDB_MODE,
    WANDB_PROJECT, WANDB_ENTITY and others. `run` names the run, otherwise its folder does; `group`
    stands for the runs of one comparison, otherwise the folder of the comparison does.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        run: str | None = None,
        tags: tuple[str, ...] | None = None,
    ) -> None:
        check_installed("wandb", "Weights & Biases")
        self._project, self._entity, self._group = project, entity, group
        self._called, self._tags = run, tags
        self._run: Any = None
        self._error: BaseException | None = None

    def begin(self, about: RunInfo) -> None:
        """Begin a run, or go on with the one of before."""
        wandb: Any = import_module("wandb")
        self._bookmark = Bookmark(about, "wandb")
        usually = {k: v for k, v in _USUALLY.items() if f"WANDB_{k.upper()}" not in os.environ}
        self._run = wandb.init(
            project=self._project or wandb.setup().settings.project or "partavg",
            entity=self._entity,
            group=self._group or about.group or None,
            name=self._called or about.name,
            tags=self._tags,
            config=dict(about.settings),
            dir=None if "WANDB_DIR" in os.environ else about.folder,
            id=self._bookmark.run,
            resume="allow" if self._bookmark.run else None,
            reinit="create_new",  # a run that the user began stays the user's
            settings=wandb.Settings(**usually),
        )
        self._error = None
        self._first = self._run.step  # it takes no step before that: of a resumed run it has them
        for row in self._bookmark.begin(self._run.id):
            self._log(row)

    def take(self, row: Row) -> None:
        """Log the numbers of a row."""
        if self._bookmark.is_new():
            self._log(row)

    def stopped(self, error: BaseException) -> None:
        """Remember why there will be no summary."""
        self._error = error

    def end(self, summary: Row | None) -> None:
        """Finish the run: with the summary, or marked as one that failed."""
        ended, reason = outcome(summary, self._error)
        self._run.summary.update({**(summary or {}), "outcome": ended})
        if reason or self._bookmark.resumed:  # there may be one of before
            self._run.summary["reason"] = reason
        if ended == "diverged":
            self._run.tags = (*(self._run.tags or ()), ended)
        self._run.finish(exit_code=0 if summary else 1)
        self._bookmark.told()  # not before: what it has in memory is lost if the process is killed

    def _log(self, row: Row) -> None:
        if row["step"] >= self._first:
            self._run.log(numbers(row), step=row["step"])
