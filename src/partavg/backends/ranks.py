"""The processes that torchrun started: their collectives, and what all must agree on."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import perf_counter

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from partavg.backends.client_bank import ClientBank
from partavg.backends.processes import Count, Value, check_same, dealt, dealt_evenly
from partavg.backends.rank_failure import RollCall
from partavg.core.participation import Swap
from partavg.core.reduce import Arriving
from partavg.own_version import own_version
from partavg.sentences import reason

TIMEOUT = "PARTAVG_TIMEOUT"
_PATIENCE = 300.0  # seconds that a rank waits for the others
_FAREWELL = 10.0  # seconds that it waits for them to end


class Agreed(ValueError):
    """A mistake that all ranks know of."""


class Ranks:
    """All ranks of a job, each with some of the workers.

    `store` is where they meet; it must be empty. Collectives on the CPU go over gloo, those on GPUs
    over NCCL.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: float = _PATIENCE,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self.rank, self.size, self._store = rank, size, store
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.asks: Callable[[], bool] = lambda: False
        self.stopping = False
        self.seconds: Sequence[float] = ()
        self.reduce = _Sum(self)
        told = {"torch": torch.__version__, "partavg": own_version(), **(facts or {})}
        self.roll = RollCall(PrefixStore("roll", store), rank, size, facts=told)
        for what in ("torch", "partavg"):
            check_same(what, [facts[what] for facts in self.roll.facts])
        self.machines = len({facts["host"] for facts in self.roll.facts})
        gpus = torch.cuda.is_available() and distributed.is_nccl_available()
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        self._when = "at the start"
        self._worked, self._since = 0.0, perf_counter()

    def part(self) -> None:
        """Part from the others, once all have come to their end."""
        with suppress(RuntimeError):  # they are gone already
            self._store.set(f"end/{self.rank}", "")
            ends = [f"end/{rank}" for rank in range(self.size)]
            self._store.wait(ends, timedelta(seconds=_FAREWELL))
        distributed.destroy_process_group()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for others in here: it is no work, and if they do not come they are named."""
        self._worked += perf_counter() - self._since
        with self.roll.naming_lost(self._when):
            yield
        self._since = perf_counter()

    def swap(self, clients: int, slots: int) -> Swap:
        """Every client has a home, where its rows are kept."""
        homes, holders = (dealt_evenly(count, self.size) for count in (clients, slots))
        return ClientBank(self.rank, homes, holders, self.waiting)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A ValueError or OSError in here, of any rank, is raised in all as one ValueError."""
        try:
            yield
        except Agreed:
            raise
        except (ValueError, OSError) as error:
            self._agree(None, str(error) or type(error).__name__)
        else:
            self._agree(None)

    def first(self, make: Callable[[], Value]) -> Value:
        """What rank 0 makes, or raises, given to all."""
        made, error = None, ""
        if self.rank == 0:
            try:
                made = make()
            except (ValueError, OSError) as mistake:
                error = str(mistake) or type(mistake).__name__
        value: Value = self._agree(made, error)[0]  # type: ignore[assignment]
        return value

    def each(self, value: Value) -> list[Value]:
        """The small values of all ranks."""
        return self._agree(value)

    def values(self, own: Float[Tensor, "_"], count: int) -> Float[Tensor, "m"]:
        """A number per worker, from the ranks that hold them to all."""
        told = self._gathered(own.to("cpu", torch.float64), count)
        return torch.cat(told).to(own)

    def ended(self, step: int, losses: Float[Tensor, "_"], count: int) -> Float[Tensor, "m"]:
        """The losses of all workers; along with them goes who is asked to stop, and who is slow."""
        own = losses.to("cpu", torch.float64)
        self._worked += perf_counter() - self._since
        self._since = perf_counter()
        about = own.new_tensor([self._worked, float(self.asks())])
        told = self._gathered(torch.cat([about, own]), count, 2)
        self._when, self._worked = f"after step {step}", 0.0
        self.seconds = [float(values[0]) for values in told]
        self.stopping = any(float(values[1]) for values in told)
        return torch.cat([values[2:] for values in told]).to(losses)

    def note(self, reason: str) -> None:
        """Tell the others why this rank leaves: it is in the sentence that says it is lost."""
        self.roll.note(reason)

    def collect(self, rows: Shaped[Tensor, "_ n"], count: Count) -> Shaped[Tensor, "m n"]:
        """All rows in the memory of rank 0's CPU, a rank at a time."""
        shares = dealt(count, self.size)
        if not rows.shape[1:].numel():
            return rows.new_empty(shares[-1].stop, *rows.shape[1:], device="cpu")
        own = rows.to("cpu").contiguous()
        with self.waiting():
            if self.rank:
                if len(own):
                    distributed.send(own, 0)
                return own
            every = own.new_empty(shares[-1].stop, *own.shape[1:])
            every[shares[0]] = own
            for rank, held in enumerate(shares[1:], 1):
                if held.start < held.stop:
                    distributed.recv(every[held], rank)
        return every

    def deal(self, rows: Shaped[Tensor, "_ n"], count: Count) -> Shaped[Tensor, "_ n"]:
        """Back to each rank what `collect` took; others than rank 0 bring rows of that kind."""
        shares = dealt(count, self.size)
        own = shares[self.rank]
        if (own.start == own.stop and self.rank) or not rows.shape[1:].numel():
            return rows.new_empty(own.stop - own.start, *rows.shape[1:])
        with self.waiting():
            if self.rank:
                mine = rows.new_empty(own.stop - own.start, *rows.shape[1:])
                distributed.recv(mine, 0)
                return mine
            for rank, held in enumerate(shares[1:], 1):
                if held.start < held.stop:
                    distributed.send(rows[held].to("cpu").contiguous(), rank)
        return rows[own]

    def _agree(self, value: Value, error: str = "") -> list[Value]:
        """The values of all ranks; every agreement is this one, so that an error reaches any."""
        told: list[tuple[Value, str]] = [(value, error)] * self.size
        with self.waiting():
            distributed.all_gather_object(told, (value, error))
        mistakes = {rank: text for rank, (_, text) in enumerate(told) if text}
        if mistakes:
            rank, text = next(iter(mistakes.items()))
            raise Agreed(text if rank == 0 else f"{self.roll.name(rank)}: {text}")
        return [value for value, _ in told]

    def _gathered(self, own: Tensor, count: int, extra: int = 0) -> list[Tensor]:
        """The numbers of every rank: one for each of its workers, and so many more."""
        lengths = [held.stop - held.start + extra for held in dealt_evenly(count, self.size)]
        message = torch.nn.functional.pad(own, (0, max(lengths) - len(own)))
        every = [torch.empty_like(message) for _ in lengths]
        with self.waiting():
            distributed.all_gather(every, message)
        return [row[:length] for row, length in zip(every, lengths, strict=True)]


class _Sum:
    """The Reduce of ranks: one collective on the message itself, on its way at once."""

    room = 0

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Begin to sum."""
        if not message.numel():
            return lambda: message
        with self._ranks.waiting():
            work = distributed.all_reduce(message, async_op=True)

        def arrived() -> Tensor:
            with self._ranks.waiting():
                work.wait()
            return message

        return arrived

    def gather(self, rows: Float[Tensor, "m _"]) -> Arriving:
        """Begin to collect; ranks that have fewer rows than others fill up."""
        counts = self._ranks.each(len(rows))
        own = torch.nn.functional.pad(rows, (0, 0, 0, max(counts) - len(rows))).contiguous()
        every = [torch.empty_like(own) for _ in counts]
        with self._ranks.waiting():
            work = distributed.all_gather(every, own, async_op=True)

        def arrived() -> Tensor:
            with self._ranks.waiting():
                work.wait()
            return torch.cat([some[:count] for some, count in zip(every, counts, strict=True)])

        return arrived


def connect() -> tuple[Ranks, Store]:
    """Meet the other ranks of this job; also the store, which torchrun keeps between restarts."""
    try:
        timeout = float(os.environ.get(TIMEOUT, _PATIENCE))
    except ValueError:
        given = os.environ[TIMEOUT]
        raise ValueError(f"{TIMEOUT} = {given!r} is not a number: give seconds") from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        # torch itself would find the addresses of ranks that are gone under the names of new ones.
        own = PrefixStore(f"partavg/attempt/{attempt}", store)
        return Ranks(own, rank, size, timeout=timeout), store
    except distributed.DistError as error:
        raise ValueError(f"not all ranks came within {timeout:g} s: {reason(error)}") from None
