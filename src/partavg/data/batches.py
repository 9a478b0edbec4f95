"""Endless mini-batches for every worker, each a pure function of (seed, worker, step)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.seeds import bits, fold

_BLOCK = 32  # steps prepared together


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
        self._batch = batch
        workers = range(len(split))
        self._shuffles = np.array([fold(seed, "batches", i) for i in workers], np.uint64)
        self._keys = np.array([fold(seed, "keys", i) for i in workers], np.uint64)
        self._block = -1
        self._prepared = np.empty((len(split), _BLOCK, batch), np.int64)
        self._ready = np.zeros(len(split), bool)

    def __call__(
        self, step: int, workers: NDArray[np.int64] | None = None
    ) -> tuple[Int[Tensor, "m n"], Int[Tensor, "m"]]:
        """The indices and the keys for a step, counted from 1, of all workers or of some."""
        if workers is None:
            workers = np.arange(len(self._split))
        block, offset = divmod(step - 1, _BLOCK)
        if block != self._block:
            self._block = block
            self._ready[:] = False
        for worker in workers[~self._ready[workers]].tolist():
            self._prepared[worker] = self._stream(worker, block)
            self._ready[worker] = True
        keys = bits(self._keys[workers], np.array([step - 1], np.uint64)) >> np.uint64(1)
        indices = self._prepared[workers, offset]
        return torch.from_numpy(indices), torch.from_numpy(keys.astype(np.int64))

    def _stream(self, worker: int, block: int) -> NDArray[np.int64]:
        """Indices [steps, batch] of a block: a piece of the worker's endless stream of passes."""
        samples = self._split[worker]
        size, length = len(samples), _BLOCK * self._batch
        first, skip = divmod(block * length, size)
        passes = -(-(skip + length) // size)
        counter = np.arange(first * size, (first + passes) * size, dtype=np.uint64)
        # Sorting random numbers shuffles; each pass has its own.
        order = bits(self._shuffles[worker : worker + 1], counter).reshape(passes, size).argsort(1)
        stream = samples[order].reshape(-1)[skip : skip + length]
        return stream.reshape(_BLOCK, self._batch)
