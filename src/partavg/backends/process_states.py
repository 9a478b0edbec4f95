"""The workers of all processes as one process would save them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from partavg.backends.processes import Processes

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
        bank = {f"bank.{k}": [self.clients, *rows.shape[1:]] for k, rows in state["bank"].items()}
        return {**own, **memory, **bank}

    def collect(self, state: SavedState) -> SavedState:
        """All rows, in the first process; what others get is of no use."""
        return self._mapped(state, self.processes.collect)

    def deal(self, saved: SavedState | None) -> SavedState:
        """The rows of each process, of a state that the first process has."""
        outline = self.processes.first(lambda: self._mapped(saved or {}, _outlined))
        return self._mapped(saved or outline, self.processes.deal)

    def _mapped(self, state: SavedState, change: OnRows) -> SavedState:
        """Change all that has a row per worker or per client."""

        def rows(tensor: Tensor) -> Tensor:
            return change(tensor, self.workers)

        own = ["params", "buffers", "steps", "lr_sum", "taken"]
        own += ["local_taken"] if state.get("local_taken") is not None else []
        memory, bank, pending = state["memory"], state["bank"], state["pending"]
        return {
            **state,
            **{name: rows(state[name]) for name in own},
            "memory": {k: v if k in self.shared else rows(v) for k, v in memory.items()},
            "bank": {name: change(kept, self.clients) for name, kept in bank.items()},
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


def _outlined(rows: Tensor, count: int) -> Tensor:
    """As many columns of that type, and no memory of the rows: others than the first need these."""
    return rows.new_empty(0, *rows.shape[1:], device="cpu")
