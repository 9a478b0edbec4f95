"""The workers of all processes as one process would save them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from partavg.backends.processes import Processes, dealt_evenly
from partavg.core.bank import SavedBank, as_saved

SavedState = dict[str, Any]
"""What `Workers.state` gives."""

OnRows = Callable[[Tensor, int], Tensor]
"""(rows here, how many there are in all) -> other rows."""


@dataclass(frozen=True, slots=True)
class ProcessStates:
    """Collects the state of workers that are dealt over processes, and deals it again."""

    processes: Processes
    workers: int
    clients: int
    shared: frozenset[str]
    """Entries of the solver's memory that all workers have in common."""

    def shapes(self, state: SavedState) -> dict[str, list[int]]:
        """The shapes that tensors have in a state of all processes, of one of this process.

        Those whose columns follow a schedule that changes are left out.
        """
        own = {name: [self.workers, state[name].shape[1]] for name in ("params", "buffers")}
        own["taken"] = [self.workers, 1]
        memory = {
            f"memory.{name}": [len(rows) if name in self.shared else self.workers, *rows.shape[1:]]
            for name, rows in state["memory"].items()
        }
        bank = {
            f"bank.{name}": [self.clients, *kept["first"].shape[1:]]
            for name, kept in state["bank"].items()
        }
        return {**own, **memory, **bank}

    def collect(self, state: SavedState) -> SavedState:
        """All rows, in the first process; what others get is of no use."""
        return {
            **self._mapped(state, self.processes.collect),
            "bank": {name: self._bank_of_all(kept) for name, kept in state["bank"].items()},
        }

    def deal(self, saved: SavedState | None) -> SavedState:
        """The rows of each process, of a state that the first process has."""
        outline, counts = self.processes.first(lambda: self._outline(saved or {}))
        state = saved or outline
        return {
            **self._mapped(state, self.processes.deal),
            "bank": {
                name: self._own_bank(as_saved(kept), counts[name])
                for name, kept in state["bank"].items()
            },
        }

    def _outline(self, saved: SavedState) -> tuple[SavedState, dict[str, list[int]]]:
        """What others than the first must know of a state; how many rows of each bank they get."""
        banks = {name: as_saved(kept) for name, kept in saved["bank"].items()}
        outlined = {
            name: {what: _outlined(tensor) for what, tensor in kept.items()}
            for name, kept in banks.items()
        }
        homes = dealt_evenly(self.clients, self.processes.size)
        counts = {
            name: [_count(kept["clients"], home) for home in homes] for name, kept in banks.items()
        }
        return {**self._mapped(saved, _outlined), "bank": outlined}, counts

    def _bank_of_all(self, kept: SavedBank) -> SavedBank:
        """What is kept for the clients of all homes."""
        counts = self.processes.each(len(kept["clients"]))
        clients = (kept["clients"] + self._home.start)[:, None]
        return {
            "first": kept["first"],
            "clients": self.processes.collect(clients, counts)[:, 0],
            "rows": self.processes.collect(kept["rows"], counts),
        }

    def _own_bank(self, kept: SavedBank, counts: Sequence[int]) -> SavedBank:
        """What is kept here of a bank that the first process has."""
        size = self.processes.size
        first = kept["first"].repeat(size, 1)  # no rows where there is only an outline
        clients = self.processes.deal(kept["clients"][:, None], counts)[:, 0]
        return {
            "first": self.processes.deal(first, [1] * size),
            "clients": clients - self._home.start,
            "rows": self.processes.deal(kept["rows"], counts),
        }

    @property
    def _home(self) -> slice:
        """The clients whose home is here."""
        return dealt_evenly(self.clients, self.processes.size)[self.processes.rank]

    def _mapped(self, state: SavedState, change: OnRows) -> SavedState:
        """Change all that has a row per worker."""

        def rows(tensor: Tensor) -> Tensor:
            return change(tensor, self.workers)

        own = ["params", "buffers", "steps", "lr_sum", "taken"]
        own += ["local_taken"] if state.get("local_taken") is not None else []
        memory, pending = state["memory"], state["pending"]
        return {
            **state,
            **{name: rows(state[name]) for name in own},
            "memory": {k: v if k in self.shared else rows(v) for k, v in memory.items()},
            "pending": {
                part: {
                    **message,
                    "sync": (*map(rows, message["sync"][:3]), *message["sync"][3:]),
                    "sent": [rows(sent) for sent in message["sent"]],
                    **({"counted": rows(message["counted"])} if "counted" in message else {}),
                }
                for part, message in pending.items()
            },
        }


def _count(clients: Tensor, home: slice) -> int:
    """How many of the clients have this home."""
    return int(((clients >= home.start) & (clients < home.stop)).sum())


def _outlined(rows: Tensor, count: int = 0) -> Tensor:
    """As many columns of that type, and no memory of the rows: others than the first need these."""
    return rows.new_empty(0, *rows.shape[1:], device="cpu")
