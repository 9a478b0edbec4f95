"""Endless mini-batches for every worker, each a pure function of (seed, worker, step)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.seeds import fold

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
        self._split = [samples.numpy() for samples in split]
        self._batch = batch
        self._seed = seed
        self._block = -1
        self._indices = torch.empty(0)
        self._keys = torch.empty(0)

    def __call__(self, step: int) -> tuple[Int[Tensor, "m n"], Int[Tensor, "m"]]:
        """The indices and the keys for a step, counted from 1."""
        block, offset = divmod(step - 1, _BLOCK)
        if block != self._block:
            self._prepare(block)
        return self._indices[offset], self._keys[offset]

    def _prepare(self, block: int) -> None:
        workers = range(len(self._split))
        indices = np.stack([self._stream(worker, block) for worker in workers], 1)
        keys = np.stack([self._random(block, worker) for worker in workers], 1)
        self._indices, self._keys = torch.from_numpy(indices), torch.from_numpy(keys)
        self._block = block

    def _stream(self, worker: int, block: int) -> np.ndarray:
        """Indices [steps, batch] of a block: a piece of the worker's endless stream of passes."""
        samples = self._split[worker]
        length = _BLOCK * self._batch
        first, skip = divmod(block * length, len(samples))
        passes = -(-(skip + length) // len(samples))
        stream = [
            np.random.default_rng(fold(self._seed, "batches", worker, first + i)).permutation(
                samples
            )
            for i in range(passes)
        ]
        return np.concatenate(stream)[skip : skip + length].reshape(_BLOCK, self._batch)

    def _random(self, block: int, worker: int) -> np.ndarray:
        generator = np.random.default_rng(fold(self._seed, "keys", worker, block))
        return generator.integers(2**63 - 1, size=_BLOCK)
