"""Endless mini-batches for every worker, each a pure function of (seed, worker, step)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.seeds import bits, fold

_BLOCK = 32  # steps prepared together
_MOST = 1 << 16  # numbers that are drawn at a time, so that they stay in the cache


class Batches:
    """Sample indices and random keys of every worker at step 1, 2, ….

    A worker's samples are reshuffled for every pass; a batch may straddle two passes, so that
    every batch is full, and a worker with fewer samples than a batch goes round more than once.
    """

    def __init__(self, split: Sequence[Int[Tensor, "_"]], batch: int, seed: int) -> None:
        if batch < 1:
            raise ValueError(f"batch {batch} is below 1: use at least one sample")
        empty = [worker for worker, samples in enumerate(split) if len(samples) == 0]
        if empty:
            raise ValueError(f"worker {empty[0]} owns no samples: give every worker at least one")
        self._split = [samples.cpu().numpy() for samples in split]
        self._sizes = np.array([len(samples) for samples in split])
        self._batch = batch
        self._seed = seed
        self._shuffles, self._keys = np.zeros((2, len(split)), np.uint64)
        self._seen = np.zeros(len(split), bool)
        """Workers whose numbers these two have."""
        self._block = -1
        self._prepared = np.empty((0, _BLOCK, batch), np.int64)
        self._place, self._count = np.full(len(split), -1), 0
        """Where in `prepared` the workers seen in this block are, and how many these are."""

    def __call__(
        self, step: int, workers: NDArray[np.int64] | None = None
    ) -> tuple[Int[Tensor, "m n"], Int[Tensor, "m"]]:
        """The indices and the keys for a step, counted from 1, of all workers or of some."""
        if workers is None:
            workers = np.arange(len(self._split))
        block, offset = divmod(step - 1, _BLOCK)
        if block != self._block:
            self._block = block
            self._place[:], self._count = -1, 0
        new = workers[self._place[workers] < 0]
        if len(new):
            self._prepare(new, block)
        keys = bits(self._keys[workers], np.array([step - 1], np.uint64)) >> np.uint64(1)
        indices = self._prepared[self._place[workers], offset]
        return torch.from_numpy(indices), torch.from_numpy(keys.astype(np.int64))

    def _prepare(self, workers: NDArray[np.int64], block: int) -> None:
        """Make room for the streams of workers that are new in a block, and fill it."""
        for worker in workers[~self._seen[workers]].tolist():
            self._shuffles[worker] = fold(self._seed, "batches", worker)
            self._keys[worker] = fold(self._seed, "keys", worker)
        self._seen[workers] = True
        first, self._count = self._count, self._count + len(workers)
        if self._count > len(self._prepared):
            room = self._count - len(self._prepared), *self._prepared.shape[1:]
            self._prepared = np.concatenate([self._prepared, np.empty(room, np.int64)])
        self._place[workers] = np.arange(first, self._count)
        for alike in self._by_size(workers):
            size = int(self._sizes[alike[0]])
            count = max(1, _MOST // (size + _BLOCK * self._batch))
            for start in range(0, len(alike), count):
                some = alike[start : start + count]
                self._prepared[self._place[some]] = self._streams(some, size, block)

    def _by_size(self, workers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Workers with as many samples each, together."""
        ordered = workers[self._sizes[workers].argsort(kind="stable")]
        return np.split(ordered, np.flatnonzero(np.diff(self._sizes[ordered])) + 1)

    def _streams(self, workers: NDArray[np.int64], size: int, block: int) -> NDArray[np.int64]:
        """Indices [workers, steps, batch] of a block, of workers with as many samples each.

        They are a piece of a worker's endless stream of passes.
        """
        count, length = len(workers), _BLOCK * self._batch
        first, skip = divmod(block * length, size)
        passes = -(-(skip + length) // size)
        counter = np.arange(first * size, (first + passes) * size, dtype=np.uint64)
        # Sorting random numbers shuffles; each pass has its own.
        drawn = bits(self._shuffles[workers, None], counter).reshape(count, passes, size)
        order = drawn.argsort(2).reshape(count, -1)[:, skip : skip + length]
        samples = np.concatenate([self._split[worker] for worker in workers.tolist()])
        places = order + size * np.arange(count)[:, None]
        stream: NDArray[np.int64] = samples[places].reshape(count, _BLOCK, self._batch)
        return stream
