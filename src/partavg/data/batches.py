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
        self._prepared = torch.empty(0), torch.empty(0)

    def __call__(self, step: int) -> tuple[Int[Tensor, "m n"], Int[Tensor, "m"]]:
        """The indices and the keys for a step, counted from 1."""
        block, offset = divmod(step - 1, _BLOCK)
        if block != self._block:
            self._prepared = self._prepare(block)
            self._block = block
        indices, keys = self._prepared
        return indices[offset], keys[offset]

    def _prepare(self, block: int) -> tuple[Tensor, Tensor]:
        indices = np.stack([self._stream(worker, block) for worker in range(len(self._split))], 1)
        steps = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.uint64)
        keys = bits(self._keys, steps[:, None]) >> np.uint64(1)
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
