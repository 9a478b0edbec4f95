"""Solvers tried on two workers with a tiny model, before what they say is believed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from partavg.core.abilities import abilities, below, name_of
from partavg.core.layout import Layout
from partavg.core.solver import Solver, State, Step, Sync
from partavg.sentences import shown


def solver_of(given: object) -> Solver:
    """What was given as a solver; a ValueError if it is none."""
    if isinstance(given, type):
        raise ValueError(f"solver {given.__name__} is a class: make one, {given.__name__}()")
    if not isinstance(given, Solver):
        raise ValueError(
            f"solver {shown(given)} has not the functions init, step_, encode and decode_: give "
            f"one that has, for example partavg.SGD()"
        )
    return given


def check_abilities(given: object) -> None:
    """Raise a ValueError for no solver, or if what it says does not hold in a small trial."""
    solver = solver_of(given)
    said, name = abilities(solver), name_of(solver)
    base = below(solver)
    if base is not None and abilities(base).outer_step:
        raise ValueError(
            f"solver {name} has one with an outer step below it, {name_of(base)}: that must be the "
            f"topmost solver, and the only one"
        )
    if said.outer_step and base is None:
        raise ValueError(f"solver {name} has an outer step, but no base that averages: add one")
    trial = Trial(solver)
    for entry in said.per_client:
        if entry not in trial.memory or entry in shared_names(solver):
            raise ValueError(
                f"solver {name} says that {entry!r} belongs to clients, but its memory has no such "
                f"entry with a row per worker: name one that `init` makes"
            )
    Trial(solver, dtype=torch.float32).check()
    plain = trial.averages_plainly()
    if said.plain and not plain:
        raise ValueError(
            f"solver {name} says that its messages are plain, but it sends more than its rows or "
            f"does more than copy the mean: set plain=False in its abilities"
        )
    if not said.keeps_apart and not torch.allclose(trial.rows[0], trial.rows[1], 1e-9, 1e-12):
        raise ValueError(
            f"solver {name} leaves workers apart when a part is averaged, but does not say so: set "
            f"keeps_apart=True in its abilities"
        )


def shared_names(solver: Solver) -> frozenset[str]:
    """The entries of a solver's memory that all workers have in common: [1, d], not [m, d]."""
    return frozenset(name for name, tensor in Trial(solver).memory.items() if len(tensor) == 1)


def sends_parameters(solver: Solver) -> bool:
    """Whether messages begin with the parameters themselves, so that models can be compared."""
    trial = Trial(solver)
    return torch.equal(trial.encoded()[:, : trial.rows.shape[1]], trial.rows)


def sends_only_parameters(solver: Solver) -> bool:
    """Whether messages are the parameters and nothing else."""
    return sends_parameters(solver) and message_length(solver) == (1, 0, 0)


def knows_without_average(solver: Solver) -> bool:
    """Whether workers that do not get an average remember what they would if they did.

    What belongs to clients may change when a part is averaged, so long as it needs no average.
    """
    own, found = abilities(solver).per_client, []
    for scale in (1.0, 2.0):
        trial = Trial(solver)
        slots = {k: v.clone() for k, v in trial.memory.items() if len(v) > 1 and k not in own}
        trial.average(scale)
        if any(not torch.equal(trial.memory[name], entry) for name, entry in slots.items()):
            return False
        found.append([trial.memory[name] for name in own])
    return all(map(torch.equal, *found))


class MessageLength(NamedTuple):
    """How many numbers a message has, since solvers treat each column by itself."""

    per_column: int
    per_span: int
    """Beside the columns of each span."""
    once: int
    """Beside all spans."""


def message_length(solver: Solver) -> MessageLength:
    """How many numbers a solver's messages have."""
    one, two = (Trial(solver, width) for width in (1, 2))
    short, long = (trial.encoded().shape[1] for trial in (one, two))
    return MessageLength(long - short, 2 * short - long, one.told().shape[1])


class Trial:
    """Two workers with a tiny model that took a step, to see what a solver does."""

    def __init__(self, solver: Solver, width: int = 3, dtype: torch.dtype = torch.float64) -> None:
        self._solver, self._name = solver, name_of(solver)
        count = torch.arange(2 * width, dtype=dtype).view(2, width)
        self._start = (1 + 0.25 * count[:1]).repeat(2, 1)
        self.rows = self._start + 0.1 * (count + 1).sqrt()
        ones = torch.ones(2, 1, dtype=torch.float64)
        self.sync = Sync(2 * ones, 0.2 * ones, 2 * ones)
        with self._trying("init"):
            self._layout = Layout(("trial",), ((width,),))
            self.memory: State = solver.init(self._start, self._layout)
            self._check_memory()
        self._step()

    def encoded(self) -> Tensor:
        """What the two send."""
        with self._trying("encode"):
            sent = self._solver.encode(self.rows, self.memory, self.sync)
            self._check_message(sent)
        return sent

    def told(self) -> Tensor:
        """What the two tell beside their messages."""
        tells = abilities(self._solver).tells
        with self._trying("tells"):
            told: object = tells(self.sync) if tells else self.rows.new_empty(2, 0)
            if not isinstance(told, Tensor) or told.ndim != 2 or len(told) != 2:
                raise ValueError("it gives no tensor with a row per worker")
        return told

    def averages_plainly(self) -> bool:
        """Average; whether that was to send the rows and copy the mean, and nothing else."""
        kept = {name: entry.clone() for name, entry in self.memory.items()}
        sent, before = self.encoded().clone(), self.rows.clone()
        total, as_rows = self.average(), torch.equal(sent, before)
        copied = as_rows and torch.equal(self.rows, total.expand_as(self.rows))
        return copied and all(
            name in self.memory and torch.equal(kept[name], self.memory[name]) for name in kept
        )

    def average(self, scale: float = 1.0) -> Tensor:
        """Take the mean of what the two send, or a multiple of it."""
        total, told = scale * self.encoded().mean(0), self.told()
        sync = self.sync._replace(told=told.to(total.dtype).mean(0)) if told.numel() else self.sync
        with self._trying("decode_"):
            self._solver.decode_(self.rows, total, self.memory, sync)
        return total

    def step(self) -> tuple[bool, bool]:
        """Whether a step changes gradients, and parameters, with some memory of the past."""
        for place, entry in enumerate(self.memory.values()):
            if entry.is_floating_point():
                entry.add_(0.3 + 0.1 * place)
        before = self.rows.clone()
        given, grads = self._step()
        return not torch.equal(grads, given), not torch.equal(self.rows, before)

    def check(self) -> None:
        """Raise a ValueError if something fails, or memory is put elsewhere."""
        before = dict(self.memory)
        self.averages_plainly()
        self.step()
        lost = [name for name in before if self.memory.get(name) is not before[name]]
        if lost or len(self.memory) != len(before):
            raise ValueError(
                f"solver {self._name} puts other tensors into its memory, which would be lost: "
                f"change in place those that `init` makes"
            )

    def _step(self) -> tuple[Tensor, Tensor]:
        """Gradients before and after a step."""
        grads = 0.7 * self.rows
        given = grads.clone()
        with self._trying("step_"):
            whole = self._layout if abilities(self._solver).whole_tensors else None
            self._solver.step_(self.rows, grads, self.memory, Step(0.1, self.sync.taken, whole))
        return given, grads

    def _check_memory(self) -> None:
        width = self.rows.shape[1]
        if not isinstance(self.memory, dict):
            raise ValueError(f"it gives no dict of tensors, but {type(self.memory).__name__}")
        for name, entry in self.memory.items():
            shape = tuple(entry.shape) if isinstance(entry, Tensor) else ()
            if shape not in ((2, width), (1, width)):
                raise ValueError(
                    f"{name!r} is not of the shape [workers, columns], nor [1, columns]"
                )
            if entry.untyped_storage().data_ptr() == self._start.untyped_storage().data_ptr():
                raise ValueError(f"{name!r} is the parameters themselves: clone them")

    def _check_message(self, sent: object) -> None:
        kind = self.rows.dtype
        if not isinstance(sent, Tensor) or sent.ndim != 2 or len(sent) != 2:
            raise ValueError("it gives no tensor with a row per worker")
        if sent.dtype != kind:
            raise ValueError(f"it gives {sent.dtype}: keep the type, as with sync.steps.to({kind})")

    @contextmanager
    def _trying(self, function: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(
                f"solver {self._name} fails in `{function}`, tried on two workers with a model of "
                f"one tensor, 'trial', of {self.rows.shape[1]} {self.rows.dtype}: {kind}{error}"
            ) from error
