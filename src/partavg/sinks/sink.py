"""Where the metrics of a run go while it goes on: one protocol, and what calls it."""

import errno
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from partavg.metrics.meter import Diverged
from partavg.metrics.metric import Metric, Row
from partavg.registry import mismatch
from partavg.sentences import shown

_LONGEST = 400  # letters of what another tool says of its failure


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
    group: str = ""
    """What the runs of one comparison have in common; empty for a run by itself."""

    @property
    def name(self) -> str:
        """What other tools call the run: as its folder, where there is one."""
        return self.folder.resolve().name if self.folder else self.label


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


SinkLike = Sink | Callable[[Row], object] | str | Mapping[str, Any]
"""What Python code may give for a sink: one, a function of a row, a name, a table as in recipes."""


@runtime_checkable
class Informed(Sink, Protocol):
    """A sink that is also told why a run stopped early."""

    def stopped(self, error: BaseException) -> None:
        """What stopped the run: a GeneratorExit if it was asked to; `end(None)` follows."""
        ...


class SinkFailed(RuntimeError):
    """A sink raised an error, which stops the run; what is on disk can be resumed."""


class Call:
    """A function of a row as a sink."""

    def __init__(self, function: Callable[[Row], object]) -> None:
        self.function = function

    def begin(self, about: RunInfo) -> None:
        """Do nothing."""

    def take(self, row: Row) -> None:
        """Call the function."""
        self.function(row)

    def end(self, summary: Row | None) -> None:
        """Do nothing."""


def as_sink(thing: object) -> Sink:
    """A sink, or a function of a row as one; a ValueError if it is neither.

    >>> as_sink(print).take({"step": 1, "loss": 0.5})
    {'step': 1, 'loss': 0.5}
    """
    if isinstance(thing, type) and issubclass(thing, Sink):
        raise ValueError(f"sink {thing.__name__} is a class: make one of it, {thing.__name__}(…)")
    if isinstance(thing, Sink):
        return thing
    if not callable(thing):
        raise ValueError(
            f"{shown(thing)} is no sink: give an object with the functions begin, take and "
            f"end, or a function of a row"
        )
    if problem := mismatch(thing, {}):
        raise ValueError(f"sink {called(thing)} cannot be called with a row: {problem}")
    return Call(thing)


def called(sink: object) -> str:
    """What a sink is called where it fails."""
    function = sink.function if isinstance(sink, Call) else sink
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name.rpartition("<locals>.")[2]


def numbers(row: Row) -> dict[str, int | float]:
    """What of a row other tools can draw: its numbers, but the step; lists are left out."""
    return {k: v for k, v in row.items() if k != "step" and isinstance(v, int | float)}


def outcome(summary: Row | None, error: BaseException | None) -> tuple[str, str]:
    """How a run ended, in a word: finished, stopped, diverged or failed; and of the latter why."""
    if summary is not None:
        return "finished", ""
    if not isinstance(error, Exception):
        return "stopped", ""
    return "diverged" if isinstance(error, Diverged) else "failed", str(error)


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

    def __init__(self, sinks: Iterable[Sink | Callable[[Row], object]], about: RunInfo) -> None:
        self._sinks, self._about = [as_sink(sink) for sink in sinks], about
        self._open: list[Sink] = []

    def __enter__(self) -> Self:
        for sink in self._sinks:
            if self._about.folder is None and getattr(sink, "needs_folder", False):
                raise ValueError(
                    f"sink {called(sink)} writes into a run folder, and there is none: say where, "
                    f'out="runs/{self._about.label}"'
                )
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
                if error and isinstance(sink, Informed):
                    _ask(sink, "at the end", partial(sink.stopped, error))
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
        said = textwrap.shorten(str(error), _LONGEST, placeholder=" …")
        raise SinkFailed(
            f"sink {called(sink)} failed {when} with {type(error).__name__}: {said}; "
            f"mend it, or leave it out"
        ) from error
