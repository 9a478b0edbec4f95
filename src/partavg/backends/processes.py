"""The processes that simulate together: one, or the ranks that torchrun started."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

from jaxtyping import Float, Shaped
from torch import Tensor

from partavg.core.participation import Swap, swap_
from partavg.core.reduce import Alone, Reduce

Value = TypeVar("Value")

Count = int | Sequence[int]
"""How many rows there are in all, dealt evenly; or how many each process has."""


class Processes(Protocol):
    """What a simulation needs of the other processes; all of them call the same, in one order."""

    rank: int
    size: int
    local_rank: int
    """Among the processes of this machine."""
    machines: int
    asks: Callable[[], bool]
    """Whether this process is asked to stop; a caller may set it."""

    @property
    def reduce(self) -> Reduce:
        """Sums over all workers."""
        ...

    def swap(self, clients: int, slots: int) -> Swap:
        """How rows of so many clients get to where they are kept, and back into so many slots."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """A ValueError or OSError in here, of any process, is raised in all as one ValueError."""
        ...

    def first(self, make: Callable[[], Value]) -> Value:
        """What the first process makes, or raises, given to all."""
        ...

    def each(self, value: Value) -> list[Value]:
        """The small values of all processes."""
        ...

    def values(self, own: Float[Tensor, "_"], count: int) -> Float[Tensor, "m"]:
        """A number per worker, from the processes that hold them to all."""
        ...

    def ended(self, step: int, losses: Float[Tensor, "_"], count: int) -> Float[Tensor, "m"]:
        """A step ends here: the losses of all workers; now all know `stopping` and `seconds`."""
        ...

    def note(self, reason: str) -> None:
        """Tell the others why this process leaves, as far as they are there to hear it."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether any process was asked to stop, as known to all after the last step."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """How long each process worked on the last step, without waiting for others."""
        ...

    def collect(self, rows: Shaped[Tensor, "_ n"], count: Count) -> Shaped[Tensor, "m n"]:
        """Of so many rows, dealt over the processes, all for the first process."""
        ...

    def deal(self, rows: Shaped[Tensor, "_ n"], count: Count) -> Shaped[Tensor, "_ n"]:
        """Back to each process what `collect` took; others than the first bring an empty row."""
        ...


def dealt_evenly(count: int, size: int) -> list[slice]:
    """Things dealt over processes in order, as evenly as possible.

    >>> dealt_evenly(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    each, more = divmod(count, size)
    starts = [rank * each + min(rank, more) for rank in range(size + 1)]
    return [slice(start, stop) for start, stop in pairwise(starts)]


def dealt(count: Count, size: int) -> list[slice]:
    """Which rows each process has.

    >>> dealt([2, 0, 1], 3)
    [slice(0, 2, None), slice(2, 2, None), slice(2, 3, None)]
    """
    if isinstance(count, int):
        return dealt_evenly(count, size)
    return [slice(start, stop) for start, stop in pairwise(accumulate(count, initial=0))]


def own_workers(processes: Processes, workers: int) -> slice:
    """The workers of this process; a ValueError if some process would have none."""
    if processes.size > workers:
        raise ValueError(
            f"{processes.size} ranks cannot share {workers} active workers: start {workers} at most"
        )
    return dealt_evenly(workers, processes.size)[processes.rank]


def check_same(what: str, values: Sequence[object], ranks: Sequence[int] | None = None) -> None:
    """Raise a ValueError that names the first rank whose value differs, and both values."""
    ranks = ranks or range(len(values))
    for rank, value in zip(ranks, values, strict=True):
        if value != values[0]:
            raise ValueError(
                f"rank {rank} has {what} {value}, rank {ranks[0]} has {values[0]}: "
                f"start all ranks with the same"
            )


class OneProcess:
    """One process that has all workers."""

    rank, size, local_rank, machines = 0, 1, 0, 1
    reduce = Alone()
    seconds: Sequence[float] = ()

    def __init__(self) -> None:
        self.asks: Callable[[], bool] = lambda: False

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.asks()

    def swap(self, clients: int, slots: int) -> Swap:
        """Everything is kept here."""
        return swap_

    def together(self) -> AbstractContextManager[None]:
        """An error is an error."""
        return nullcontext()

    def first(self, make: Callable[[], Value]) -> Value:
        """What is made here."""
        return make()

    def each(self, value: Value) -> list[Value]:
        """The only one."""
        return [value]

    def values(self, own: Float[Tensor, "_"], count: int) -> Float[Tensor, "m"]:
        """They are all here."""
        return own

    def ended(self, step: int, losses: Float[Tensor, "_"], count: int) -> Float[Tensor, "m"]:
        """They are all here."""
        return losses

    def note(self, reason: str) -> None:
        """There are no others."""

    def collect(self, rows: Shaped[Tensor, "_ n"], count: Count) -> Shaped[Tensor, "m n"]:
        """They are all here."""
        return rows

    def deal(self, rows: Shaped[Tensor, "_ n"], count: Count) -> Shaped[Tensor, "_ n"]:
        """They all stay."""
        return rows
