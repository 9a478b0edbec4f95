"""A command as one of the ranks that torchrun started, or alone."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from torch.distributed.distributed_c10d import Store

from partavg.backends.lost import RankLost
from partavg.backends.processes import OneProcess
from partavg.backends.ranks import Ranks, connect
from partavg.budget import larger
from partavg.cli import output
from partavg.cli.resume import program, resuming_words
from partavg.comparison import PlannedRun, resumed
from partavg.config import Config
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder, next_folder
from partavg.recipe_run import Run

_OUT, _BEGUN = "partavg/out", "partavg/begun"


class Job:
    """The processes of a command, and what it remembers when torchrun starts all ranks again."""

    def __init__(self, processes: Ranks | OneProcess, store: Store | None = None) -> None:
        self.processes = processes
        self._store = store

    def out(self, given: Path | None, name: str) -> Path:
        """The folder to write to: the one given, that of before a restart, or the next one free."""
        return given or self.processes.first(lambda: self._next_folder(name))

    def start(
        self, config: Config, data: Dataset, folder: RunFolder, *, resume: bool, force: bool
    ) -> Run | None:
        """Begin a run, or go on with it; None if it is finished."""
        key = f"{_BEGUN}/{folder.path}"
        with output.bad_input(self.processes.together()), output.plain_warnings():
            if self.processes.first(lambda: self._store is not None and self._store.check([key])):
                resume, force = True, False  # it is this run that began before a restart
            if resume and self.processes.first(lambda: _is_finished(folder, config, data)):
                return None
            run = Run(config, data, folder, resume=resume, force=force, processes=self.processes)
        if self._store and self.processes.rank == 0:
            self._store.set(key, "")
        return run

    def continued(
        self, entries: Sequence[PlannedRun], data: Dataset, *, resume: bool, force: bool
    ) -> list[PlannedRun]:
        """The runs of a comparison, all with the engine of one that was started."""

        def found() -> list[PlannedRun]:
            if self._restarted and not force:
                return resumed(entries)
            for entry in entries:
                entry.folder.check_free(resume=resume, force=force)
                if resume and entry.folder.exists:  # refuse before any of them goes on
                    _goes_on(entry.folder, entry.config, data)
            return resumed(entries) if resume else list(entries)

        return self.processes.first(found)

    def resuming(self, context: click.Context, out: Path) -> list[str]:
        """The command that goes on with what the one of the context does in `out`."""
        words, own = resuming_words(context, out), program(context)
        if self._store is None:
            return [*(["python", *own] if own else ["partavg"]), *words]
        machines = os.environ.get("GROUP_WORLD_SIZE", "1")
        each = os.environ.get("LOCAL_WORLD_SIZE", str(self.processes.size))
        several = ["--nnodes", machines] if machines != "1" else []
        which = own or ["-m", "partavg"]
        return ["torchrun", *several, "--nproc-per-node", each, *which, *words]

    @property
    def _restarted(self) -> bool:
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    def _next_folder(self, name: str) -> Path:
        if self._store is None:
            return next_folder(name)
        if not self._store.check([_OUT]):
            self._store.set(_OUT, str(next_folder(name)))
        return Path(self._store.get(_OUT).decode())


@contextmanager
def job() -> Iterator[Job]:
    """Work with the other ranks, if there are any; if one is lost, all end."""
    if not output.launched():
        yield Job(OneProcess())
        return
    with output.bad_input():
        ranks, store = connect()
    try:
        yield Job(ranks, store)
        ranks.part()
    except RankLost as lost:
        output.fail(str(lost), output.LOST, here=lost.speaks)
    except SystemExit as end:
        if end.code != output.LOST:
            ranks.part()
        raise
    finally:
        ranks.roll.close()


def _is_finished(folder: RunFolder, config: Config, data: Dataset) -> bool:
    """Whether a run ended here, with the budget wanted; it must be the one wanted."""
    return folder.finished and not _goes_on(folder, config, data)


def _goes_on(folder: RunFolder, config: Config, data: Dataset) -> bool:
    """Whether the run that was started here, which must be the one wanted, gets a larger budget."""
    folder.check_data(data.fingerprints)
    return larger(folder, folder.stored_config(config), config, data) is not None
