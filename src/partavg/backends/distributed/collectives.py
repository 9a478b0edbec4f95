"""Sums over the ranks of process groups."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from partavg.backends.distributed.trailer import Trailer
from partavg.core.average import Arriving


class Collective(ABC):
    """The Reduce of an attached model."""

    room = 0
    bytes = 0
    """Sent by this rank so far, as long as messages are; as much comes back."""
    messages = 0
    trailers: Sequence[Trailer] = ()

    @abstractmethod
    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
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

    def at(self, step: int, *, leaving: bool = False) -> None:
        """Messages from now on are about this step; or this rank asks for the consensus."""
        for trailer in self.trailers:
            trailer.step, trailer.leaving = step, leaving

    def count(self, size: int) -> None:
        """A message of that many bytes is sent."""
        self.bytes += size
        self.messages += 1

    def state(self) -> dict[str, Any]:
        """What the next messages depend on."""
        return {}

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state` gave."""
        if saved:
            raise ValueError(
                "the checkpoint is of a rank that rounds its messages: attach with the same wire"
            )


class NoOthers(Collective):
    """That of a process alone."""

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
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
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
    ) -> Arriving:
        """There is nobody any more."""
        raise ValueError("the averager was detached: call attach again to average")

    def state(self) -> dict[str, Any]:
        """As it was."""
        return self._state


class AllReduce(Collective):
    """One collective per message, with a trailer of the ranks behind it."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        trailer: Callable[[Sequence[int], int], Trailer] = Trailer,
    ) -> None:
        self.group = group
        self.trailer = trailer(dist.get_process_group_ranks(group), dist.get_rank(group))
        self.trailers = [self.trailer]
        self.room = self.trailer.room

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
    ) -> Arriving:
        """Sign and send; what comes back is read when it is waited for."""
        self.trailer.sign_(message)
        return self.begin(message)

    def gather(self, rows: Float[Tensor, "m _"]) -> Arriving:
        """Sign and send one's own row to all."""
        message = torch.nn.functional.pad(rows[0], (0, self.room))
        self.trailer.sign_(message)
        self.count(rows.nbytes)
        every = message.new_empty(dist.get_world_size(self.group), len(message))
        work = dist.all_gather(list(every), message, group=self.group, async_op=True)

        def arriving() -> Tensor:
            work.wait()
            self.trailer.read(every[:, -self.room :].sum(0))
            return every[:, : -self.room]

        return arriving

    def begin(self, message: Float[Tensor, "_"]) -> Arriving:
        """Send a message that is signed."""
        body, tail = message[: -self.room], message[-self.room :]
        self.count(body.nbytes)
        work = dist.all_reduce(message, group=self.group, async_op=True)

        def arriving() -> Tensor:
            work.wait()
            self.trailer.read(tail)
            return body

        return arriving


class AcrossMachines(Collective):
    """Sums between machines whose own ranks hold the same: each rank sends its share of a message.

    Then the shares are put together inside the machine. The mesh is machines × ranks of a machine.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._between, self._inside = mesh.get_group(0), mesh.get_group(1)
        machine, self._own = mesh.get_local_rank(0), mesh.get_local_rank(1)
        self.trailers = [Trailer(peers, machine) for peers in mesh.mesh.T.tolist()]

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
    ) -> Arriving:
        """Send this rank's share; the others' are waited for with it."""
        trailer, ranks = self.trailers[self._own], len(self.trailers)
        width = -(-len(message) // ranks)
        share = message.new_zeros(width + trailer.room)
        own = message[self._own * width : (self._own + 1) * width]
        share[: len(own)] = own
        trailer.sign_(share)
        self.count(own.nbytes)
        work = dist.all_reduce(share, group=self._between, async_op=True)

        def arriving() -> Tensor:
            work.wait()
            shares = share.new_empty(ranks, len(share))
            dist.all_gather(list(shares), share, group=self._inside)
            for peers, tail in zip(self.trailers, shares[:, width:], strict=True):
                peers.read(tail)
            return shares[:, :width].flatten()[: len(message)]

        return arriving
