"""Where a solver's memory of a model lies between averagings, and in which type."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from partavg.core.abilities import abilities, name_of
from partavg.core.arguments import check_choice
from partavg.core.partition import Span
from partavg.core.solver import Solver, State
from partavg.core.trial import MessageLength, message_length, sends_parameters

MEMORIES = ("full", "params", "host", "params+host")


def check_memory(memory: str, solver: Solver, *, fresh: bool = False) -> None:
    """Raise a ValueError for a memory that is not known, or that a solver needs elsewhere."""
    check_choice("memory", memory, list(MEMORIES))
    if memory != "full" and fresh:
        raise ValueError(
            f"memory {memory!r} does not go with partition 'fresh', whose columns are known only "
            f"when they are averaged: leave one of them out"
        )
    said = abilities(solver)
    only = message_length(solver)[:2] == MessageLength(1, 0, 0)[:2] and sends_parameters(solver)
    if "host" in memory and (said.corrects_gradients or said.corrects_parameters or not only):
        raise ValueError(
            f"memory {memory!r} does not go with solver {name_of(solver)}, which needs its memory "
            f"at every step: use {memory.replace('host', '').strip('+') or 'full'!r}"
        )


class MemoryStore:
    """Keeps a solver's memory in the parameters' type, or on the host, and fetches what is due.

    Solvers compute with copies of a part, in float32 at least and where the model is, which are
    rounded and put back. From the host they come on a stream of their own, before the part is due.
    """

    def __init__(self, kind: torch.dtype, device: torch.device) -> None:
        self._kind, self._device = kind, device
        self._stream: torch.cuda.Stream | None = None
        self._fetched: dict[tuple[Span, ...], State] = {}

    def fetch(self, memory: State, due: Sequence[Sequence[Span]]) -> None:
        """Begin to copy from the host what is needed next, and nothing else."""
        if self.is_far(memory):
            known, stream = self._fetched, self._side_stream()
            with torch.cuda.stream(stream):
                self._fetched = {
                    key: known.get(key) or self._copies(memory, key) for key in map(tuple, due)
                }

    def forget(self) -> None:
        """The memory has become another: what was fetched is not the same any more."""
        self.wait()
        self._fetched.clear()

    def recall(self, memory: State, spans: Sequence[Span]) -> tuple[State, Sequence[Span]]:
        """Copies of the memory of some columns, and where these lie in the copies."""
        key = tuple(spans)
        if self.is_far(memory):
            if key not in self._fetched:
                self.fetch(memory, [key])
            now = torch.cuda.current_stream(self._device)
            now.wait_stream(self._side_stream())
            copies = self._fetched.pop(key)
            for copy in copies.values():
                copy.record_stream(now)
        else:
            copies = self._copies(memory, key)
        return {name: copy.to(self._kind) for name, copy in copies.items()}, _compact(key)

    def put_back_(self, memory: State, spans: Sequence[Span], copies: State) -> None:
        """Keep what became of the copies."""
        rounded = {name: copy.to(memory[name].dtype) for name, copy in copies.items()}
        if not self.is_far(memory):
            _write_(memory, spans, rounded)
            return
        stream = self._side_stream()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            _write_(memory, spans, rounded)
        for copy in rounded.values():
            copy.record_stream(stream)

    def wait(self) -> None:
        """Until all that was put back is there."""
        if self._stream is not None:
            self._stream.synchronize()

    def _copies(self, memory: State, spans: Sequence[Span]) -> State:
        size = sum(stop - start for start, stop in spans)
        copies = {}
        for name, kept in memory.items():
            copy = kept.new_empty(len(kept), size, device=self._device)
            for (start, stop), (a, b) in zip(spans, _compact(spans), strict=True):
                copy[:, a:b].copy_(kept[:, start:stop], non_blocking=True)
            copies[name] = copy
        return copies

    def is_far(self, memory: State) -> bool:
        """Whether it is on the host, and the model is not."""
        return any(kept.device != self._device for kept in memory.values())

    def _side_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._stream


def pinned(memory: State, device: torch.device) -> State:
    """The memory; where it is on the host and the model is not, in pages that a GPU can read."""
    far = device.type == "cuda" and any(not kept.is_cuda for kept in memory.values())
    return {name: kept.pin_memory() for name, kept in memory.items()} if far else memory


def _compact(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same lengths, one after another."""
    ends = accumulate((stop - start for start, stop in spans), initial=0)
    return tuple(Span(a, b) for a, b in pairwise(ends))


def _write_(memory: State, spans: Sequence[Span], copies: State) -> None:
    for name, copy in copies.items():
        for (start, stop), (a, b) in zip(spans, _compact(spans), strict=True):
            memory[name][:, start:stop].copy_(copy[:, a:b], non_blocking=True)
