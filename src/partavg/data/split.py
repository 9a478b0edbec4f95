"""Which worker owns which samples."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.seeds import fold
from partavg.registry import Names

Split = list[Int[Tensor, "_"]]
"""The indices of each worker's samples."""

_TRIES = 1000


def iid(labels: Int[Tensor, "n"], workers: int, seed: int) -> Split:
    """Shuffle all samples and deal them out evenly.

    >>> [len(owned) for owned in iid(torch.zeros(10, dtype=torch.long), workers=4, seed=0)]
    [3, 3, 2, 2]
    """
    _check_workers(len(labels), workers)
    order = np.random.default_rng(fold(seed, "split")).permutation(len(labels))
    return [_owned([part]) for part in np.array_split(order, workers)]


def dirichlet(
    labels: Int[Tensor, "n"],
    workers: int,
    seed: int,
    *,
    alpha: float = 0.5,
    balanced: bool = True,
    minimum: int = 10,
) -> Split:
    """Deal each class out in proportions drawn from Dir(alpha): small alpha, few classes each.

    `balanced` gives no more to a worker that already owns n / workers samples. The whole draw is
    repeated until every worker owns at least `minimum` samples.

    >>> labels = torch.arange(600) % 3
    >>> owned = dirichlet(labels, workers=4, seed=0, alpha=0.1)
    >>> sum(map(len, owned)), min(map(len, owned)) >= 10
    (600, True)
    """
    _check_workers(len(labels), workers)
    if not 0 < alpha < float("inf"):
        raise ValueError(
            f"alpha {alpha} is not a number above 0: 0.1 is very uneven, 100 nearly even"
        )
    if minimum * workers > len(labels):
        raise ValueError(
            f"{workers} workers cannot own {minimum} of {len(labels)} samples each: "
            f"use fewer workers or a lower minimum"
        )
    generator = np.random.default_rng(fold(seed, "split"))
    known = labels.cpu().numpy()
    classes = [np.flatnonzero(known == c) for c in np.unique(known)]
    for _ in range(_TRIES):
        owned = _deal(classes, workers, alpha, balanced, generator)
        if min(map(len, owned)) >= minimum:
            return [_owned([part]) for part in owned]
    raise ValueError(
        f"none of {_TRIES} draws with alpha {alpha} gave all {workers} workers {minimum} samples: "
        f"use a larger alpha, fewer workers or a lower minimum"
    )


def shards(labels: Int[Tensor, "n"], workers: int, seed: int, *, shards: int = 2) -> Split:
    """Sort by label, cut into equal shards, deal `shards` to each worker (McMahan et al., 2017).

    With few shards each worker owns few classes.
    """
    _check_workers(len(labels), workers)
    if not 1 <= shards <= len(labels) // workers:
        raise ValueError(
            f"{workers} workers cannot own {shards} shards each of {len(labels)} samples: "
            f"use 1 to {len(labels) // workers} shards"
        )
    generator = np.random.default_rng(fold(seed, "split"))
    shuffled = generator.permutation(len(labels))
    order = shuffled[labels.cpu().numpy()[shuffled].argsort(kind="stable")]
    pieces = np.array_split(order, workers * shards)
    dealt = generator.permutation(len(pieces)).reshape(workers, shards)
    return [_owned([pieces[piece] for piece in row]) for row in dealt]


def writer(writers: Int[Tensor, "n"], workers: int, seed: int, *, each: int = 0) -> Split:
    """Group writers into workers: all of them dealt out evenly, or `each` random ones per worker.

    Takes the writer of each sample in place of its label.
    """
    known = writers.cpu().numpy()
    people = np.random.default_rng(fold(seed, "split")).permutation(np.unique(known))
    wanted = workers * max(each, 1)
    if workers < 1 or each < 0 or wanted > len(people):
        raise ValueError(
            f"{workers} workers cannot have {max(each, 1)} of {len(people)} writers each: "
            f"use fewer workers or writers"
        )
    groups = np.array_split(people[: workers * each] if each else people, workers)
    return [_owned([np.flatnonzero(np.isin(known, group))]) for group in groups]


def saved(labels: Int[Tensor, "n"], workers: int, seed: int, *, path: str = "") -> Split:
    """The split in a file that `save` wrote, whatever the seed."""
    try:
        with open(path, "rb") as stored, np.load(stored) as file:
            indices, counts = file["indices"], file["counts"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path!r} is not a saved split: {error}") from None
    whole = all(a.ndim == 1 and a.dtype.kind in "iu" for a in (indices, counts))
    if not whole or counts.sum() != len(indices) or min(indices.min(initial=0), *counts, 1) < 0:
        raise ValueError(f"{path!r} is not a saved split: its numbers do not fit together")
    if len(counts) != workers or indices.max(initial=-1) >= len(labels):
        raise ValueError(
            f"{path!r} splits {indices.max(initial=-1) + 1} or more samples over {len(counts)} "
            f"workers, not {len(labels)} over {workers}: use the dataset it was made for"
        )
    return [torch.from_numpy(part) for part in np.split(indices, np.cumsum(counts)[:-1])]


def save(split: Split, path: Path) -> None:
    """Write a split to an .npz file: all indices, worker after worker, and how many each owns."""
    counts = np.array([len(samples) for samples in split])
    with path.open("wb") as file:
        np.savez_compressed(file, indices=torch.cat(split).cpu().numpy(), counts=counts)


def _owned(pieces: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(pieces)))


def _deal(
    classes: list[np.ndarray],
    workers: int,
    alpha: float,
    balanced: bool,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    full = sum(map(len, classes)) / workers
    owned: list[list[np.ndarray]] = [[] for _ in range(workers)]
    counts = np.zeros(workers)
    for samples in classes:
        shares = generator.dirichlet(np.full(workers, alpha))
        if balanced and (shares * (counts < full)).sum() > 0:
            shares = shares * (counts < full)
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(samples)).astype(int)
        for worker, part in enumerate(np.split(generator.permutation(samples), cuts)):
            owned[worker].append(part)
            counts[worker] += len(part)
    return [np.concatenate(parts) for parts in owned]


def _check_workers(samples: int, workers: int) -> None:
    if workers < 1:
        raise ValueError(f"{workers} workers cannot train: use 1 or more")
    if workers > samples:
        raise ValueError(
            f"{workers} workers cannot share {samples} samples: use at most {samples} workers"
        )


SPLITS: Names[Callable[..., Split]] = Names(
    "split",
    {
        "dirichlet": dirichlet,
        "iid": iid,
        "saved": saved,
        "shards": shards,
        "writer": writer,
    },
)
