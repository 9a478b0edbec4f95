"""Where samples are, and the mini-batches that are gathered from there."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.arguments import check_choice
from partavg.core.inputs import sent
from partavg.data.memory import free_on, readable
from partavg.data.samples import Samples, memory_of, room_of, shared, signed

Store = Literal["auto", "device", "host"]

Draw = Callable[[int], tuple[Int[Tensor, "m n"], Int[Tensor, "m"]]]
"""The indices of the samples, and the keys, of every worker at a step."""

_SHARE = 0.5  # of a GPU's free memory that samples may take: training needs the rest


def gather_from(samples: Samples, device: torch.device, store: str = "auto") -> "Gather":
    """From samples on the device if they fit there, else from the memory of the host."""
    if chosen_store(samples, device, store) == "device":
        return FromDevice(moved(samples, device), device)
    return FromHost(moved(samples, torch.device("cpu")), device)


def chosen_store(samples: Samples, device: torch.device, store: str) -> str:
    """Where samples go: "auto" leaves those in host memory that would fill half of a GPU's."""
    check_choice("store", store, get_args(Store))
    if store != "auto":
        return store
    free = free_on(device)
    away = room_of(tensor for tensor in samples.tensors if tensor.device.type != device.type)
    return "device" if free is None or away <= _SHARE * free else "host"


def moved(samples: Samples, device: torch.device) -> Samples:
    """Samples on a device, views of one memory as such; a ValueError if there is no room.

    The windows of a text are: inputs and targets take no more room than the text.
    """
    try:
        pieces = {key: (piece, piece.to(device)) for key, piece in shared(samples.tensors).items()}
        return samples.each(lambda tensor: _moved(tensor, device, pieces.get(memory_of(tensor))))
    except torch.OutOfMemoryError:
        raise ValueError(
            f"the samples need {readable(samples.bytes)}, more than is free on {device}: use "
            f"store='host'"
        ) from None


def _moved(tensor: Tensor, device: torch.device, piece: tuple[Tensor, Tensor] | None) -> Tensor:
    """A tensor on a device: a view of the piece that lies there already, if it is one."""
    if piece is None:
        return tensor.to(device)
    here, there = piece
    place = there.storage_offset() + tensor.storage_offset() - here.storage_offset()
    return there.as_strided(tensor.shape, tensor.stride(), place)


class FromDevice:
    """Gathers on the device that has all samples: the fast way."""

    store = "device"
    """Where the samples are."""

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self.samples, self._device = samples, device

    def __call__(self, step: int, draw: Draw) -> tuple[Samples, Int[Tensor, "m"]]:
        """The samples [m, n, …] and the keys of a step."""
        indices, keys = (sent(tensor, self._device) for tensor in draw(step))
        return self.samples.some(indices), keys


class _Ahead(NamedTuple):
    """A batch that is being gathered."""

    step: int
    shape: torch.Size
    keys: Tensor
    buffer: int
    found: "Future[Samples]"


class FromHost:
    """Gathers in the memory of the host, one step ahead, and sends batches to the device.

    A thread gathers the next batch while this one trains; it touches no GPU, so that kernels may be
    recorded meanwhile. Pinned buffers take turns, and batches travel on a stream of their own.
    """

    store = "host"

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self.samples, self._device = samples, device
        self._thread = ThreadPoolExecutor(1, "partavg-gather")  # ends when this is let go of
        self._ahead: _Ahead | None = None
        self._sender = _Sender(device) if device.type == "cuda" else None

    def __call__(self, step: int, draw: Draw) -> tuple[Samples, Int[Tensor, "m"]]:
        """The samples [m, n, …] and the keys of a step; begins to gather those of the next."""
        now, self._ahead = self._ahead, None
        if now is None or now.step != step:
            now = self._begin(step, draw, now.buffer if now else 0)
        flat = now.found.result()
        if self._sender:
            flat = self._sender.send(flat, now.buffer)
        elif self._device.type != "cpu":
            flat = moved(flat, self._device)
        shape = now.shape
        batch = flat.each(lambda tensor: tensor.view(*shape, *tensor.shape[1:]))
        self._ahead = self._begin(step + 1, draw, 1 - now.buffer)
        return batch, sent(now.keys, self._device)

    def _begin(self, step: int, draw: Draw, buffer: int) -> _Ahead:
        indices, keys = draw(step)
        rows = indices.flatten()
        room = self._sender.room(self.samples, len(rows), buffer) if self._sender else None
        found = self._thread.submit(_gathered, self.samples, rows, room)
        return _Ahead(step, indices.shape, keys, buffer, found)


class _Sender:
    """Two pinned buffers and the stream on which they are sent."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._rooms: list[Samples | None] = [None, None]
        self._gone = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]

    def room(self, samples: Samples, count: int, buffer: int) -> Samples:
        """A buffer for so many samples, once the last batch in it is on the device."""
        self._gone[buffer].synchronize()
        room = self._rooms[buffer]
        if room is None or room.size != count:
            room = self._rooms[buffer] = samples.each(
                lambda tensor: torch.empty(
                    (count, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True
                )
            )
        return room

    def send(self, batch: Samples, buffer: int) -> Samples:
        """A batch on the device, where it is there before what is asked for from now on."""
        with torch.cuda.stream(self._stream):
            arrived = batch.each(lambda tensor: tensor.to(self._device, non_blocking=True))
            self._gone[buffer].record(self._stream)
        training = torch.cuda.current_stream(self._device)
        training.wait_event(self._gone[buffer])
        for tensor in arrived.tensors:
            tensor.record_stream(training)
        return arrived


Gather = FromDevice | FromHost
"""Gives the samples and the keys of a step, which are drawn, wherever the samples are."""


def _gathered(samples: Samples, rows: Tensor, room: Samples | None) -> Samples:
    if room is None:
        return samples.some(rows)
    for source, target in zip(samples.tensors, room.tensors, strict=True):
        torch.index_select(signed(source), 0, rows, out=signed(target))
    return room
