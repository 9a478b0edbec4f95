"""One seed for a run; everything random is a pure function of it and of where it is used."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN, _MIX1, _MIX2 = (
    np.uint64(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def fold(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one use: `fold(seed, "batches", worker)`.

    >>> fold(0, "split") == fold(0, "split") != fold(1, "split")
    True
    """
    text = "/".join(map(str, (seed, *path)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def bits(seeds: NDArray[np.uint64], counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The `counter`-th 64 random bits from each seed: the splitmix64 generator.

    The arrays are broadcast together; any element can be had without those before it.
    """
    state = seeds + (counter + np.uint64(1)) * _GOLDEN
    state ^= state >> np.uint64(30)
    state *= _MIX1
    state ^= state >> np.uint64(27)
    state *= _MIX2
    state ^= state >> np.uint64(31)
    return state


def bits24(keys: Int[Tensor, "*k"], shape: tuple[int, ...]) -> Int[Tensor, "..."]:
    """24 random bits per element, from each key its own: the same generator, on any device."""
    golden, mix1, mix2 = (int(constant.astype(np.int64)) for constant in (_GOLDEN, _MIX1, _MIX2))
    count = torch.Size(shape).numel()
    state = torch.arange(1, count + 1, device=keys.device) * golden + keys[..., None]
    state = (state ^ _shifted(state, 30)) * mix1
    state = (state ^ _shifted(state, 27)) * mix2
    return _shifted(state ^ _shifted(state, 31), 40).view(*keys.shape, *shape)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Unsigned shift to the right; torch's own keeps the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


class Source(NamedTuple):
    """One of the generators that a program draws from without naming it."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    seed: Callable[[int], object]


OTHERS = {
    "random": Source(random.getstate, random.setstate, random.seed),
    "numpy": Source(
        np.random.get_state, np.random.set_state, lambda seed: np.random.seed(seed % 2**32)
    ),
}
"""The generators that are not torch's."""


def sources(device: torch.device, others: Iterable[str] = OTHERS) -> dict[str, Source]:
    """The generators of torch, of the processor and of a device, and some others."""
    generators = {"torch": torch.default_generator}
    if device.type == "cuda":
        generators["torch.cuda"] = torch.cuda.default_generators[device.index or 0]
    own = {n: Source(g.get_state, g.set_state, g.manual_seed) for n, g in generators.items()}
    return {**own, **{name: OTHERS[name] for name in others}}


def moved(device: torch.device, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The states of all generators; of those only that changed, if it is said what they were."""
    states = {name: source.read() for name, source in sources(device).items()}
    if before is None:
        return states
    return {name: now for name, now in states.items() if not same_state(now, before[name])}


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of a generator are equal; those of numpy and Python are tuples."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(np.array_equal(*both) for both in zip(one, other, strict=True))


@contextmanager
def seeded(seed: int, device: torch.device, others: Iterable[str] = ()) -> Iterator[None]:
    """Seed torch's own generators, and perhaps others, for a while, then restore them.

    torch.manual_seed would take a millisecond, because it looks for every kind of device.
    """
    some = sources(device, others).values()
    states = [source.read() for source in some]
    for source in some:
        source.seed(seed)
    try:
        yield
    finally:
        for source, state in zip(some, states, strict=True):
            source.write(state)
