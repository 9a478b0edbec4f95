"""Splits by client: samples that belong to somebody stay together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partavg.core.seeds import fold
from partavg.data.ids import client_ids
from partavg.data.ownership import Split, check_workers


def by_client(
    clients: Any, workers: int | None = None, seed: int = 0, *, each: int = 0, minimum: int = 1
) -> Split:
    """Give every client's samples to one worker; takes a number or a name per sample.

    There are as many workers as clients, in the order of their numbers or names, unless fewer
    `workers` are asked for: then clients are dealt out at random, evenly, or `each` so many to a
    worker, and the others stay out.

    >>> by_client(["ann", "bob", "ann"])
    [tensor([0, 2]), tensor([1])]
    """
    known = client_ids(clients)
    names = np.unique(known)
    if workers is None:
        workers = len(names)
    check_workers(len(known), workers, minimum)
    wanted = workers * max(each, 1)
    if each < 0 or wanted > len(names):
        raise ValueError(
            f"{workers} workers cannot have {max(each, 1)} of {len(names)} clients each: use "
            f"{len(names) // max(each, 1)} workers or fewer"
        )
    if workers < len(names):
        names = np.random.default_rng(fold(seed, "split")).permutation(names)
    groups = np.array_split(names[:wanted] if each else names, workers)
    split = _owned(known, groups)
    least = min(range(workers), key=lambda worker: len(split[worker]))
    if len(split[least]) < minimum:
        raise ValueError(
            f"worker {least} owns {len(split[least])} samples of its clients: use fewer workers or "
            f"a lower minimum than {minimum}"
        )
    return split


def writer(writers: Any, workers: int, seed: int, *, each: int = 0) -> Split:
    """Group writers into workers: all of them dealt out evenly, or `each` random ones per worker.

    Takes the writer of each sample in place of its label. `by_client` does the same, and keeps the
    order of clients where each is a worker.
    """
    known = client_ids(writers)
    people = np.random.default_rng(fold(seed, "split")).permutation(np.unique(known))
    wanted = workers * max(each, 1)
    if workers < 1 or each < 0 or wanted > len(people):
        raise ValueError(
            f"{workers} workers cannot have {max(each, 1)} of {len(people)} writers each: "
            f"use fewer workers or writers"
        )
    groups = np.array_split(people[: workers * each] if each else people, workers)
    return _owned(known, groups)


def _owned(known: NDArray[Any], groups: Sequence[NDArray[Any]]) -> Split:
    """The samples of each group of clients, in order; each client is in one group, or in none."""
    names, client = np.unique(known, return_inverse=True)
    group = np.full(len(names), len(groups))
    for number, members in enumerate(groups):
        group[np.searchsorted(names, members)] = number
    owner = group[client.reshape(-1)]
    ends = np.bincount(owner, minlength=len(groups) + 1).cumsum()[:-1]
    parts = np.split(owner.argsort(kind="stable"), ends)[:-1]
    return [torch.from_numpy(part.copy()) for part in parts]
