"""Which worker owns which samples."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.seeds import fold

Split = list[Int[Tensor, "_"]]
"""The indices of each worker's samples."""

_TRIES = 1000


def iid(labels: Int[Tensor, "n"], workers: int, seed: int) -> Split:
    """Shuffle all samples and deal them out evenly."""
    _check_workers(len(labels), workers)
    order = np.random.default_rng(fold(seed, "split")).permutation(len(labels))
    return [torch.from_numpy(np.sort(part)) for part in np.array_split(order, workers)]


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
            return [torch.from_numpy(np.sort(part)) for part in owned]
    raise ValueError(
        f"none of {_TRIES} draws with alpha {alpha} gave all {workers} workers {minimum} samples: "
        f"use a larger alpha, fewer workers or a lower minimum"
    )


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


SPLITS: dict[str, Callable[..., Split]] = {"dirichlet": dirichlet, "iid": iid}
