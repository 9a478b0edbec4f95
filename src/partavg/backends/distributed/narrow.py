"""Sums of models in 16 bits, whose numbers travel as they are."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from partavg.backends.distributed.collectives import AllReduce, MakeTrailer
from partavg.backends.distributed.compressed import joined, parted
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.trailer import Trailer
from partavg.core.abilities import abilities
from partavg.core.reduce import Arriving
from partavg.core.solver import Solver
from partavg.core.trial import MessageLength, message_length, sends_parameters


def narrow_type(row: ModuleRow, solver: Solver) -> torch.dtype | None:
    """The type of 16 bits in which messages lose nothing that the model could hold, if any.

    Those are messages of the parameters themselves. A solver that estimates gradients from sums
    must have them in full.
    """
    types = {tensor.dtype for tensor in (*row.trainable, *row.averaged_buffers())}
    only = message_length(solver) == MessageLength(1, 0, 0) and sends_parameters(solver)
    if len(types) > 1 or not only or abilities(solver).estimates_gradients:
        return None
    kind = types.pop()
    return kind if kind.itemsize == 2 else None


class Narrow(AllReduce):
    """Every rank sends the others their share of its numbers, as the model holds them.

    Each adds up its own share with weights in float32, and sends the sum, rounded as a model would
    hold it, to all. So nothing adds up in 16 bits, where the mean of equal numbers is another one.

    There are two collectives to a message, and the second must not wait for somebody to ask for the
    sum: on a GPU a stream sends both, elsewhere a thread.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        kind: torch.dtype,
        weights: Sequence[float],
        trailer: MakeTrailer = Trailer,
    ) -> None:
        """The group must be this collective's own: nobody else may send from another thread."""
        super().__init__(group, weights, trailer)
        self._kind, self._weights = kind, weights
        self._weight = weights[dist.get_rank(group)]
        self._thread = ThreadPoolExecutor(1, "partavg-narrow")
        self._stream: torch.cuda.Stream | None = None

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Send from a thread or a stream; what must be exact goes in full."""
        own = self.trailer.sign_(message).clone()  # here, for it says where this rank is now
        body = message[: -self.room]
        if key is None or exact == len(body) > 0:
            return self._begun(message)
        if message.is_cuda:
            return self._streamed(body, own)
        future = self._thread.submit(self._sum, body, own)

        def arriving() -> Tensor:
            total, entries = future.result()
            self.trailer.read(entries)
            return total

        return self.timed(arriving)

    def close(self) -> None:
        """Let go of the thread, too; it ends when nothing is on its way."""
        self._thread.shutdown(wait=False)
        super().close()

    def _begun(self, message: Tensor) -> Arriving:
        """A message in full; one after another, also for the thread."""
        if message.is_cuda:
            return self.timed(self.begin(message))
        return self.timed(self._thread.submit(lambda: self.begin(message)()).result)

    def _streamed(self, body: Tensor, own: Tensor) -> Arriving:
        self._stream = self._stream or torch.cuda.Stream(body.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(body.device))
        with torch.cuda.stream(stream):
            total, entries = self._sum(body, own)
        for tensor in (body, own):
            tensor.record_stream(stream)

        def arriving() -> Tensor:
            now = torch.cuda.current_stream(body.device)
            now.wait_stream(stream)
            for tensor in (total, entries):
                tensor.record_stream(now)
            self.trailer.read(entries)
            self.trailer.without_faulty_(total, entries)
            return total

        return self.timed(arriving)

    def _sum(self, body: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """The sum, and what all ranks say of themselves."""
        ranks, length, sums = len(self._weights), len(body), body.dtype
        width = -(-length // ranks)
        given = pad(body.div_(self._weight).to(self._kind), (0, ranks * width - length))
        shares, entries = self._deal(given.view(ranks, width), own)
        weights = torch.tensor(self._weights, dtype=sums, device=body.device)
        mine = (weights[:, None] * shares.to(sums)).sum(0).to(self._kind)
        gathered = mine.new_empty(ranks, width)
        rows = [row.view(torch.uint8) for row in gathered]
        if width:
            dist.all_gather(rows, mine.view(torch.uint8), group=self.group)
        self.count(given[:length].nbytes)
        return gathered.flatten()[:length].to(sums), entries

    def _deal(self, shares: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Give each rank its share, one's own entry behind it; get one's share of all ranks."""
        kind, entry = self._kind, own.float().expand(len(shares), -1)
        given = joined(shares.view(torch.uint8), entry)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        numbers, entries = parted(taken, shares.shape[1] * kind.itemsize, torch.float32)
        return parted(numbers, 0, kind)[1], entries.flatten()
