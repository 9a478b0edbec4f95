"""Where the metrics of a run go while it goes on: one protocol, and what calls it."""

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from partavg.metrics.metric import Metric, Row


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a sink is told of a run before its first row."""

    label: str
    steps: int
    """The last step of the run."""
    step: int = 0
    """Steps taken before: those of the checkpoint that a run goes on from."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The resolved recipe, `section.key` -> value; empty where there is none."""
    folder: Path | None = None
    """The run folder, where there is one."""
    metrics: tuple[Metric, ...] = ()
    """Those that were asked for beside the usual ones, and how to show them."""


@runtime_checkable
class Sink(Protocol):
    """Takes the metrics of a run; of several processes only the first one has sinks."""

    def begin(self, about: RunInfo) -> None:
        """A run begins, or goes on."""
        ...

    def take(self, row: Row) -> None:
        """What was measured after a step."""
        ...

    def end(self, summary: Row | None) -> None:
        """The run is finished; with None it was stopped, and may go on another day."""
        ...


class SinkFailed(RuntimeError):
    """A sink raised an error, which stops the run; what is on disk can be resumed."""


class Feed:
    """Hands rows to sinks, in order; whatever happens, each sink that began is ended, once.

    >>> class Count:
    ...     def begin(self, about): self.rows = 0
    ...     def take(self, row): self.rows += 1
    ...     def end(self, summary): print(summary, self.rows)
    >>> with Feed([Count()], RunInfo("mine", steps=2)) as feed:
    ...     feed.take({"step": 1})
    ...     feed.take({"step": 2})
    ...     feed.end({"steps": 2})
    {'steps': 2} 2
    """

    def __init__(self, sinks: Iterable[Sink], about: RunInfo) -> None:
        self._sinks, self._about = list(sinks), about
        self._open: list[Sink] = []

    def __enter__(self) -> Self:
        try:
            for sink in self._sinks:
                _ask(sink, "at the start", partial(sink.begin, self._about))
                self._open.append(sink)
        except BaseException as error:
            self._end_all(None, error)
            raise
        return self

    def take(self, row: Row) -> None:
        """Hand a row to all sinks."""
        for sink in self._open:
            own = dict(row)  # what one does to it is no matter of the others
            _ask(sink, f"at step {row.get('step')}", partial(sink.take, own))

    def end(self, summary: Row) -> None:
        """The run is finished."""
        self._end_all(summary, None)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._end_all(None, error)

    def _end_all(self, summary: Row | None, error: BaseException | None) -> None:
        """End all; the first failure is raised, unless another error is on its way."""
        failures: list[SinkFailed | OSError] = []
        while self._open:
            sink = self._open.pop(0)
            try:
                _ask(sink, "at the end", partial(sink.end, summary))
            except (SinkFailed, OSError) as failure:
                failures.append(failure)
        for failed in failures:
            if error is None or isinstance(error, GeneratorExit):
                raise failed
            error.add_note(str(failed))


def full(error: OSError) -> bool:
    """Whether an error says that a disk is full, which is no fault of a sink."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _ask(sink: Sink, when: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        if isinstance(error, OSError) and full(error):
            raise
        raise SinkFailed(
            f"sink {type(sink).__name__} failed {when} with {type(error).__name__}: {error}; "
            f"mend it, or leave it out"
        ) from error
