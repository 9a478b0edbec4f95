"""Sums over the ranks of process groups."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from partavg.backends.distributed.stopwatch import Stopwatch
from partavg.backends.distributed.trailer import AVERAGES, Trailer
from partavg.core.reduce import Arriving

MakeTrailer = Callable[[Sequence[int], int, Sequence[float] | None], Trailer]
"""From the ranks of a group, the place of this one and how much they count."""

DETACHED = "the averager was detached: call attach again to average"


class Collective(ABC):
    """The Reduce of an attached model."""

    room = 0
    bytes = 0
    """Sent by this rank so far, as long as messages are; as much comes back."""
    messages = 0
    trailers: Sequence[Trailer] = ()
    stopwatch: Stopwatch | None = None

    @abstractmethod
    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Begin to sum."""

    def gather(self, rows: Float[Tensor, "m _"]) -> Arriving:
        """Begin to collect; not all of them can."""
        raise ValueError(
            f"{type(self).__name__} sums messages and cannot collect them: leave the aggregate out"
        )

    def enter(self) -> bool:
        """Meet the others; whether they are in the middle of averaging the part of a step."""
        return False

    def at(self, step: int, deed: int = AVERAGES) -> None:
        """Messages from now on are about this step, and what this rank does after it."""
        for trailer in self.trailers:
            trailer.step, trailer.deed = step, deed

    def timed(self, arriving: Arriving) -> Arriving:
        """Take the time of waiting for a sum, where there is a stopwatch."""
        return self.stopwatch.timed(arriving, self._behind) if self.stopwatch else arriving

    def _behind(self) -> float:
        return max((trailer.behind for trailer in self.trailers), default=0.0)

    def count(self, size: int) -> None:
        """A message of that many bytes is sent."""
        self.bytes += size
        self.messages += 1

    def close(self) -> None:
        """Send no more: let go of what this rank has for it alone."""
        for trailer in self.trailers:
            trailer.close()
        self.trailers = ()

    def state(self) -> dict[str, Any]:
        """What the next messages depend on: for some names, a tensor per key."""
        return {}

    @contextmanager
    def aside(self, key: int) -> Iterator[None]:
        """What is sent in here about a key changes nothing in the messages that follow."""
        before = {name: kept[key].clone() for name, kept in self.state().items() if key in kept}
        try:
            yield
        finally:
            for name, kept in self.state().items():
                kept.pop(key, None)
                kept.update({key: before[name]} if name in before else {})

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state` gave."""
        if saved:
            raise ValueError(
                "the checkpoint is of a rank that rounds its messages: attach with the same wire"
            )


class OnItsWay:
    """A collective that was begun; it is let go of when it has been waited for.

    Torch keeps connections open for whoever holds one.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        """Wait for it, or for the error that it ends with."""
        try:
            self._work.wait()
        finally:
            self._work = None


class NoOthers(Collective):
    """That of a process alone."""

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Nobody adds anything."""
        self.count(message.nbytes)
        return lambda: message

    def gather(self, rows: Float[Tensor, "m _"]) -> Arriving:
        """Nobody sends anything."""
        self.count(rows.nbytes)
        return lambda: rows


class Left(Collective):
    """That of a rank which has left the others: it knows what was sent, and nobody to send to."""

    def __init__(self, before: Collective) -> None:
        self.bytes, self.messages, self._state = before.bytes, before.messages, before.state()

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """There is nobody any more."""
        raise ValueError(DETACHED)

    def gather(self, rows: Float[Tensor, "m _"]) -> Arriving:
        """There is nobody any more."""
        raise ValueError(DETACHED)

    def at(self, step: int, deed: int = AVERAGES) -> None:
        """There is nobody any more."""
        raise ValueError(DETACHED)

    def state(self) -> dict[str, Any]:
        """As it was."""
        return self._state

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        """There is nothing to go on with."""
        raise ValueError(DETACHED)


class AllReduce(Collective):
    """One collective per message, with a trailer of the ranks behind it."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        weights: Sequence[float] | None = None,
        trailer: MakeTrailer = Trailer,
    ) -> None:
        self.group = group
        ranks, mine = dist.get_process_group_ranks(group), dist.get_rank(group)
        self.trailer = trailer(ranks, mine, weights)
        self.trailers = [self.trailer]
        self.room = self.trailer.room

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Sign and send; what comes back is read when it is waited for."""
        self.trailer.sign_(message)
        return self.timed(self.begin(message))

    def gather(self, rows: Float[Tensor, "m _"]) -> Arriving:
        """Sign and send one's own row to all."""
        message = torch.nn.functional.pad(rows[0], (0, self.room))
        self.trailer.sign_(message)
        self.count(rows.nbytes)
        every = message.new_empty(dist.get_world_size(self.group), len(message))
        work = OnItsWay(dist.all_gather(list(every), message, group=self.group, async_op=True))

        def arriving() -> Tensor:
            work.wait()
            entries = every[:, -self.room :].sum(0)
            self.trailer.read(entries)
            return self.trailer.without_faulty_rows(every[:, : -self.room], rows, entries)

        return self.timed(arriving)

    def begin(self, message: Float[Tensor, "_"]) -> Arriving:
        """Send a message that is signed."""
        body, tail = message[: -self.room], message[-self.room :]
        self.count(body.nbytes)
        work = OnItsWay(dist.all_reduce(message, group=self.group, async_op=True))

        def arriving() -> Tensor:
            work.wait()
            self.trailer.read(tail)
            self.trailer.without_faulty_(body, tail)
            return body

        return arriving

    def close(self) -> None:
        """Let go of the group, too."""
        super().close()
        del self.group


class AcrossMachines(Collective):
    """Sums between machines whose own ranks hold the same: each rank sends its share of a message.

    Then the shares are put together inside the machine. The mesh is machines × ranks of a machine.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        groups: Sequence[dist.ProcessGroup],
        weights: Sequence[float] | None = None,
    ) -> None:
        self._between, self._inside = groups
        machine, self._own = mesh.get_local_rank(0), mesh.get_local_rank(1)
        self.trailers = [Trailer(peers, machine, weights) for peers in mesh.mesh.T.tolist()]

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Send this rank's share; the others' are waited for with it."""
        trailer, ranks = self.trailers[self._own], len(self.trailers)
        width = -(-len(message) // ranks)
        share = message.new_zeros(width + trailer.room)
        own = message[self._own * width : (self._own + 1) * width]
        share[: len(own)] = own
        trailer.sign_(share)
        self.count(own.nbytes)
        work = OnItsWay(dist.all_reduce(share, group=self._between, async_op=True))

        def arriving() -> Tensor:
            work.wait()
            trailer.without_faulty_(share[:width], share[width:])
            shares = share.new_empty(ranks, len(share))
            dist.all_gather(list(shares), share, group=self._inside)
            for column in sorted(range(ranks), key=lambda column: column != self._own):
                self.trailers[column].read(shares[column, width:])  # one's own knows the words
            return shares[:, :width].flatten()[: len(message)]

        return self.timed(arriving)

    def close(self) -> None:
        """Let go of the groups, too."""
        super().close()
        del self._between, self._inside
