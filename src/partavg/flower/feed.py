"""A client's mini-batches: drawn from samples that it holds, or those that its own loader gives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from partavg.core.loop import Batch
from partavg.core.seeds import OTHERS, fold, seeded
from partavg.data.batches import Batches
from partavg.data.convert import as_samples
from partavg.data.samples import Samples, Seen, as_seen, widened

_CPU = torch.device("cpu")


class Feed(Protocol):
    """Gives the mini-batches of one client, for training step after step."""

    samples: int
    """How many there are."""
    place: dict[str, int]
    """Where it is in the data, to be kept between messages; empty where the step says it."""

    def __call__(self, step: int) -> Batch:
        """The next mini-batch [1, n, …], and its key."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """How a client sees its data."""

    client: int
    batch: int
    seed: int
    device: torch.device
    dtype: torch.dtype
    transform: Seen | None


def feed_of(given: Any, view: View) -> Feed:
    """The mini-batches of whatever a client's `data` returned."""
    if _is_stream(given):
        return Stream(given, view, _counted(given))
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(x, Tensor) for x in given):
        samples = Samples(*given)
        samples.check()
    else:
        samples = as_samples(given, dtype=view.dtype)
    return Drawn(samples, view)


class Drawn:
    """Draws from samples: a mini-batch is a pure function of the seed, the client and the step."""

    def __init__(self, samples: Samples, view: View) -> None:
        self.samples, self.place = samples.size, dict[str, int]()
        self._from, self._device = samples, view.device
        self._draw = _draw(samples.size, view)
        self._me = np.array([view.client])
        self._seen = as_seen(samples, view.transform)

    def __call__(self, step: int) -> Batch:
        """The mini-batch of a step."""
        indices, keys = self._draw(step, self._me)
        drawn = self._from.some(indices).each(lambda tensor: tensor.to(self._device))
        keys = keys.to(self._device)
        return Batch(self._seen(drawn.inputs, keys), widened(drawn.targets), keys)


@dataclass(slots=True)
class Stream:
    """The batches of a DataLoader, or of anything that can be iterated again and again.

    Each pass is shuffled as the seed, the client and the pass say, so that a client that goes on in
    the middle of one finds the same order.
    """

    given: Any
    view: View
    samples: int
    place: dict[str, int] = field(default_factory=lambda: {"pass": 0, "batch": 0})
    _coming: Iterator[Any] | None = None
    _draw: Any = None

    def __post_init__(self) -> None:
        self._draw = _draw(1, self.view)

    def __call__(self, step: int) -> Batch:
        """The next batch."""
        samples = as_samples(self._next(), dtype=self.view.dtype)
        _, keys = self._draw(step, np.array([self.view.client]))
        keys = keys.to(self.view.device)
        batch = samples.each(lambda tensor: tensor[None].to(self.view.device))
        seen = as_seen(samples, self.view.transform)
        return Batch(seen(batch.inputs, keys), widened(batch.targets), keys)

    def _next(self) -> Any:
        place = self.place
        if self._coming is None:
            with self._drawing("pass"):
                self._coming = _from(self.given, place["batch"])
        try:
            with self._drawing("batch"):
                batch = next(self._coming)
        except StopIteration:
            if not place["batch"]:
                raise ValueError(
                    f"the data of client {self.view.client} gave no batch in pass "
                    f"{place['pass'] + 1}: return a DataLoader, or something that can be iterated "
                    f"anew, and not a generator"
                ) from None
            self.place |= {"pass": place["pass"] + 1, "batch": 0}
            self._coming = None
            return self._next()
        place["batch"] += 1
        return batch

    def _drawing(self, what: str) -> Any:
        """Whatever is random in a pass or a batch is the same when it is done again."""
        at = self.place["pass"], *([self.place["batch"]] if what == "batch" else [])
        seed = fold(self.view.seed, "data", self.view.client, what, *at)
        for generator in _generators(self.given) if what == "pass" else ():
            generator.manual_seed(seed)
        return seeded(seed, _CPU, OTHERS)


def _draw(samples: int, view: View) -> Callable[..., tuple[Tensor, Tensor]]:
    # Streams are numbered by client; those of the others are never read.
    others = [torch.zeros(1, dtype=torch.long)] * view.client
    return Batches([*others, torch.arange(samples)], view.batch, view.seed)


def _is_stream(given: Any) -> bool:
    """Whether batches are made elsewhere, and come one after another."""
    if isinstance(given, IterableDataset):
        raise ValueError("an IterableDataset gives samples one by one: return a DataLoader of it")
    return isinstance(given, DataLoader) or (
        hasattr(given, "__iter__") and not hasattr(given, "__getitem__")
    )


def _counted(given: Any) -> int:
    """How many samples a stream says that it has."""
    for thing in (given, getattr(given, "sampler", None), getattr(given, "dataset", None)):
        count = getattr(thing, "samples", None)
        if type(count) is int:
            return count
        try:
            if thing is not given:
                return len(thing)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            continue
    raise ValueError(
        f"a {type(given).__name__} does not say how many samples it is of: return a DataLoader of "
        f"a dataset that has a length, or give it an attribute `samples`"
    )


def _generators(given: Any) -> list[torch.Generator]:
    """Generators that a DataLoader was given, which would go on from where they were made."""
    holders = (given, getattr(given, "sampler", None), getattr(given, "batch_sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _from(given: Any, start: int) -> Iterator[Any]:
    """The batches of a pass from one of them on; those before are not read, if that can be."""
    if not isinstance(given, DataLoader) or isinstance(given.dataset, IterableDataset):
        batches: Iterator[Any] = iter(given)
        for _ in range(start):
            next(batches, None)
        return batches
    how: dict[str, Any] = {
        "num_workers": given.num_workers,
        "collate_fn": given.collate_fn,
        "timeout": given.timeout,
        "worker_init_fn": given.worker_init_fn,
        "multiprocessing_context": given.multiprocessing_context,
        "generator": given.generator,
    }
    if given.batch_sampler is None:
        places = list(given.sampler)[start:]
        return iter(DataLoader(given.dataset, batch_size=None, sampler=places, **how))
    chosen = list(given.batch_sampler)[start:]
    return iter(DataLoader(given.dataset, batch_sampler=chosen, **how))
