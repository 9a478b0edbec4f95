"""All that training changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.abilities import StepWeight
from partavg.core.bank import Bank
from partavg.core.layout import Layout
from partavg.core.local_columns import NOTHING_LOCAL, LocalColumns, joined, put_back_
from partavg.core.participation import Swap
from partavg.core.partition import Span
from partavg.core.reduce import LeftOut
from partavg.core.rounded import Owed
from partavg.core.solver import Solver, State, Sync
from partavg.core.views import Slices, Views


@dataclass(slots=True)
class Workers:
    """All that training changes. Copy it to go back, save it to resume."""

    params: Float[Tensor, "m d"]
    buffers: Float[Tensor, "m b"]
    memory: State
    """The solver's."""
    steps: Float[Tensor, "m p"]
    """Local steps of each worker since each part was last averaged."""
    lr_sum: Float[Tensor, "m p"]
    """Sum of the learning rates of those steps, see `Sync`."""
    taken: Float[Tensor, "m 1"]
    """Local steps of each worker since the start."""
    step: int = 0
    bytes: int = 0
    """Sent by one worker so far; as much comes back."""
    messages: int = 0
    bank: dict[str, Bank] = field(default_factory=dict)
    """What clients that are not active keep for themselves, a row each of those kept here."""
    pending: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Parts whose average is on its way, see `Plan.delay`."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What an adaptive interval remembers, see `Adapt`."""
    common: Float[Tensor, "d"] | None = None
    """Each part as all workers last had it in common, where an Aggregate wants to know."""
    local_taken: Float[Tensor, "m 1"] | None = None
    """Local steps of each worker's local columns since the start, where these go another way than
    its model: to their client."""
    outer_steps: list[int] = field(default_factory=list)
    """Outer steps of each part since the start, see `Sync`; empty where none was taken."""
    owed: dict[int, Owed] = field(default_factory=dict)
    """What the next message of each part depends on, where messages are rounded."""
    heard: dict[int, State] = field(default_factory=dict)
    """What those who come next heard of each part, see `core/listen.py`."""
    behind: State = field(default_factory=dict)
    """The memory that all have in common as those know it who are about to leave."""
    layout: Layout | None = None
    """Of the parameters; it never changes, and is not saved."""

    @classmethod
    def start(
        cls,
        params: Float[Tensor, "m d"],
        buffers: Float[Tensor, "m b"],
        layout: Layout,
        solver: Solver,
        parts: int,
    ) -> "Workers":
        """Workers before their first step."""
        clock = torch.zeros(len(params), parts, dtype=torch.float64, device=params.device)
        memory = solver.init(params, layout)
        taken = clock[:, :1].clone()
        return cls(params, buffers, memory, clock, clock.clone(), taken, layout=layout)

    def remember_start_(self) -> None:
        """Keep the start, which all workers have in common, for an Aggregate."""
        self.common = self.params[0].clone()

    def columns(self, spans: Sequence[Span], buffer_spans: Sequence[Span]) -> tuple[Views, Views]:
        """Some columns of parameters and of buffers."""
        return Slices(self.params, spans), Slices(self.buffers, buffer_spans)

    def recall(
        self, spans: Sequence[Span], *, to_send: bool = False
    ) -> tuple[State, Sequence[Span]]:
        """The solver's memory of some columns, and where these lie in it."""
        return self.memory, spans

    def remember_(self, spans: Sequence[Span], recalled: State) -> None:
        """Keep what became of the memory of some columns, where it was a copy."""

    def sync(self, part: int, active_fraction: float = 1.0) -> Sync:
        """What the workers did with a part since it was last averaged."""
        clock = slice(part, part + 1)
        counts = self.steps[:, clock].clone(), self.lr_sum[:, clock].clone(), self.taken.clone()
        return Sync(*counts, active_fraction, outer_steps=self._outer_steps()[part] + 1)

    def count_outer_step_(self, part: int) -> None:
        """A part is averaged with an outer step."""
        self.set_outer_steps_(part, self._outer_steps()[part] + 1)

    def set_outer_steps_(self, part: int, steps: int) -> None:
        """Say how many outer steps a part has seen."""
        self.outer_steps = self._outer_steps()
        self.outer_steps[part] = steps

    def _outer_steps(self) -> list[int]:
        return self.outer_steps or [0] * self.steps.shape[1]

    def count_(
        self, lr: float, moves: Float[Tensor, "m 1"] | int = 1, weigh: StepWeight | None = None
    ) -> None:
        """Count a local step, `taken` already, of those workers that move."""
        self.steps += moves
        self.lr_sum += lr * moves * (weigh(self.steps, self.taken) if weigh else 1)

    def recut(self, parts: int) -> None:
        """Begin to count for other parts, all of them just averaged."""
        self.steps = self.steps.new_zeros(len(self.params), parts)
        self.lr_sum = torch.zeros_like(self.steps)
        self.owed = {}
        if self.outer_steps:
            self.outer_steps = [max(self.outer_steps)] * parts

    def keep(
        self,
        clients: int,
        names: Sequence[str],
        device: torch.device,
        local: LocalColumns = NOTHING_LOCAL,
    ) -> None:
        """Keep a row of each of these for every client; all start as the first row does.

        Of "local.params" and the like only the local columns are kept.
        """
        whole = dict(self._rows())
        some = {f"local.{name}": joined(rows[:1], local.of(name)) for name, rows in whole.items()}
        first = {**whole, **some}
        self.bank = {name: Bank(first[name][:1].to(device, copy=True), clients) for name in names}

    def swap_(
        self,
        swap: Swap,
        leaving: Int[Tensor, "a"],
        coming: Int[Tensor, "a"],
        local: LocalColumns = NOTHING_LOCAL,
    ) -> None:
        """Put what leaving clients keep into the bank, take out what the coming ones kept."""
        for name, rows in self._rows():
            if name in self.bank:
                swap(rows, self.bank[name], leaving, coming)
            if f"local.{name}" in self.bank:
                spans = local.of(name)
                own = joined(rows, spans)
                swap(own, self.bank[f"local.{name}"], leaving, coming)
                put_back_(rows, spans, own)

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """All of it, to save; what is on its way is waited for.

        If not `whole`, the bank is what changed since it was saved.
        """
        for message in self.pending.values():
            message["total"] = _arrived_or_not(message)
        rest = {name: getattr(self, name) for name in Workers.__slots__ if name != "layout"}
        return {**rest, "bank": {name: kept.state(whole=whole) for name, kept in self.bank.items()}}

    def load_(self, saved: dict[str, Any]) -> None:
        """Take back what `state` gave, on any device; memory that fits is used again."""
        unknown_to_old: dict[str, Any] = {"common": None, "local_taken": None, "outer_steps": []}
        unknown_to_old |= {"owed": {}, "heard": {}, "behind": {}}
        for name, value in {**unknown_to_old, **saved}.items():
            setattr(self, name, self._loaded(getattr(self, name), value))

    def _loaded(self, own: Any, saved: Any) -> Any:
        if isinstance(own, Bank):
            own.load_(saved)
            return own
        if isinstance(saved, Tensor):
            if isinstance(own, Tensor) and own.shape == saved.shape:
                return own.copy_(saved)
            return saved.to(self.params.device, copy=True)
        if isinstance(saved, dict):
            known = own if isinstance(own, dict) else {}
            return {key: self._loaded(known.get(key), value) for key, value in saved.items()}
        if isinstance(saved, list | tuple):
            return type(saved)(self._loaded(None, value) for value in saved)
        return saved

    @property
    def row_names(self) -> tuple[str, ...]:
        """The names of all that has a row per worker."""
        return tuple(name for name, _ in self._rows())

    def _rows(self) -> Iterator[tuple[str, Tensor]]:
        for name in ("params", "buffers", "steps", "lr_sum", "taken"):
            yield name, getattr(self, name)
        if self.local_taken is not None:
            yield "local_taken", self.local_taken
        for name, tensor in self.memory.items():
            if len(tensor) == len(self.params):
                yield f"memory.{name}", tensor


def _arrived_or_not(message: dict[str, Any]) -> Tensor | None:
    """The total of a pending message; None for one that was left out."""
    try:
        return arrived(message)
    except LeftOut:
        return None


OLD_COUNT = "outer.count"
"""What 0.2 called a solver's memory of how many outer steps each column had seen."""


def upgrade_(workers: Workers, parts: Sequence[Sequence[Span]]) -> None:
    """Count the outer steps of each part, where a state of 0.2 was loaded."""
    counted = workers.memory.pop(OLD_COUNT, None)
    if counted is not None:
        firsts = [spans[0].start if spans else None for spans in parts]
        known = [0 if first is None else int(counted[0, first]) for first in firsts]
        for part, message in workers.pending.items():  # counted when they arrived
            known[part] += 1
            sync = Sync(*message["sync"])._replace(outer_steps=known[part])
            message["sync"] = tuple(sync)
        workers.outer_steps = known


def arrived(message: dict[str, Any]) -> Tensor:
    """The total of a pending message: there already, or waited for."""
    total = message["total"]
    if total is None:
        raise LeftOut
    ready: Tensor = total() if callable(total) else total
    return ready
