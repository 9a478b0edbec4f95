"""Which worker owns which samples: drawn from labels, or from numbers of samples."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.arguments import check_choice, check_flag, check_whole
from partavg.core.seeds import fold
from partavg.data.clients import by_client, writer
from partavg.data.ids import class_labels, how_many
from partavg.data.ownership import Split, check_workers
from partavg.data.saved_split import saved
from partavg.registry import Names
from partavg.sentences import shown

_TRIES = 1000

Labels = Literal["true", "permuted"]
"""Whether a split goes by the labels, or by the same labels on samples drawn at random."""


def iid(labels: Any, workers: int, seed: int) -> Split:
    """Shuffle all samples and deal them out evenly.

    >>> [len(owned) for owned in iid(torch.zeros(10, dtype=torch.long), workers=4, seed=0)]
    [3, 3, 2, 2]
    """
    count = how_many(labels)
    check_workers(count, workers)
    order = _generator(seed).permutation(count)
    return [_owned([part]) for part in np.array_split(order, workers)]


def by_quantity(
    labels: Any, workers: int, seed: int, *, alpha: float = 0.5, minimum: int = 10
) -> Split:
    """Shuffle all samples and deal out shares drawn from Dir(alpha): small alpha, uneven sizes.

    All workers own the same mixture of labels. Every worker gets `minimum` samples first; the rest
    is what is shared out.

    >>> owned = by_quantity(torch.zeros(600), workers=4, seed=0, alpha=0.5)
    >>> sum(map(len, owned)), min(map(len, owned)) >= 10
    (600, True)
    """
    count = how_many(labels)
    check_workers(count, workers, minimum)
    _check_alpha(alpha)
    generator = _generator(seed)
    order = generator.permutation(count)
    rest = count - workers * minimum
    more = np.cumsum(generator.dirichlet(np.full(workers, float(alpha))))[:-1] * rest
    cuts = np.arange(1, workers) * minimum + more.astype(int)
    return [_owned([part]) for part in np.split(order, cuts)]


def dirichlet(
    targets: Any,
    workers: int,
    seed: int,
    *,
    alpha: float = 0.5,
    balanced: bool = True,
    minimum: int = 10,
    labels: Labels = "true",
) -> Split:
    """Deal each class out in proportions drawn from Dir(alpha): small alpha, few classes each.

    `balanced` gives no more to a worker that already owns n / workers samples. The whole draw is
    repeated until every worker owns at least `minimum` samples. `labels="permuted"` shuffles the
    labels first: the sizes stay as uneven as they are, and all workers own the same mixture.

    >>> targets = torch.arange(600) % 3
    >>> owned = dirichlet(targets, workers=4, seed=0, alpha=0.1)
    >>> sum(map(len, owned)), min(map(len, owned)) >= 10
    (600, True)
    """
    known = class_labels(targets)
    check_workers(len(known), workers, minimum)
    _check_alpha(alpha)
    check_flag("balanced", balanced)
    check_choice("labels", labels, get_args(Labels))
    generator = _generator(seed)
    if labels == "permuted":  # by numbers of their own, so that the sizes are those of true labels
        known = np.random.default_rng(fold(seed, "permuted labels")).permutation(known)
    classes = [np.flatnonzero(known == c) for c in np.unique(known)]
    for _ in range(_TRIES):
        owned = _deal(classes, workers, alpha, balanced, generator)
        if min(map(len, owned)) >= minimum:
            return [_owned([part]) for part in owned]
    raise ValueError(
        f"none of {_TRIES} draws with alpha {alpha} gave all {workers} workers {minimum} samples: "
        f"use a larger alpha, fewer workers or a lower minimum"
    )


def by_label(labels: Any, workers: int, seed: int, *, classes: int = 2, minimum: int = 1) -> Split:
    """Give each worker exactly so many `classes`, drawn; owners of a class share it evenly.

    The "#C = k" of Li et al., 2022. Every class has an owner, and about as many as any other.

    >>> labels = torch.arange(600) % 3
    >>> [len(labels[own].unique()) for own in by_label(labels, workers=4, seed=0, classes=2)]
    [2, 2, 2, 2]
    """
    known = class_labels(labels)
    check_workers(len(known), workers, minimum)
    check_whole("classes", classes)
    names, counts = np.unique(known, return_counts=True)
    if not 1 <= classes <= len(names) or classes * workers < len(names):
        least = max(1, -(-len(names) // workers))
        raise ValueError(
            f"{workers} workers of {classes} classes each cannot own all {len(names)} classes: "
            f"use {least} to {len(names)} classes"
        )
    generator = _generator(seed)
    owners: list[list[int]] = [[] for _ in names]
    for worker in range(workers):
        owned_by = np.array([len(some) for some in owners])
        order = np.lexsort((generator.random(len(names)), owned_by))  # the least owned first
        for chosen in order[:classes]:
            owners[chosen].append(worker)
    for name, count, some in zip(names, counts, owners, strict=True):
        if count < len(some):
            raise ValueError(
                f"class {name} has {count} samples for {len(some)} workers: use fewer workers, or "
                f"fewer classes each"
            )
    owned: list[list[NDArray[np.int64]]] = [[] for _ in range(workers)]
    for name, some in zip(names, owners, strict=True):
        samples = generator.permutation(np.flatnonzero(known == name))
        for worker, part in zip(some, np.array_split(samples, len(some)), strict=True):
            owned[worker].append(part)
    split = [_owned(parts) for parts in owned]
    if min(map(len, split)) < minimum:
        raise ValueError(
            f"{classes} classes are {min(map(len, split))} samples for some of {workers} workers: "
            f"use fewer workers or a lower minimum than {minimum}"
        )
    return split


def shards(labels: Any, workers: int, seed: int, *, shards: int = 2) -> Split:
    """Sort by label, cut into equal shards, deal `shards` to each worker (McMahan et al., 2017).

    With few shards each worker owns few classes.
    """
    known = class_labels(labels)
    check_workers(len(known), workers)
    check_whole("shards", shards)
    if not 1 <= shards <= len(known) // workers:
        raise ValueError(
            f"{workers} workers cannot own {shards} shards each of {len(known)} samples: "
            f"use 1 to {len(known) // workers} shards"
        )
    generator = _generator(seed)
    shuffled = generator.permutation(len(known))
    order = shuffled[known[shuffled].argsort(kind="stable")]
    pieces = np.array_split(order, workers * shards)
    dealt = generator.permutation(len(pieces)).reshape(workers, shards)
    return [_owned([pieces[piece] for piece in row]) for row in dealt]


def _generator(seed: int) -> np.random.Generator:
    check_whole("seed", seed)
    return np.random.default_rng(fold(seed, "split"))


def _owned(pieces: list[NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(pieces)))


def _deal(
    classes: list[NDArray[np.int64]],
    workers: int,
    alpha: float,
    balanced: bool,
    generator: np.random.Generator,
) -> list[NDArray[np.int64]]:
    full = sum(map(len, classes)) / workers
    owned: list[list[NDArray[np.int64]]] = [[] for _ in range(workers)]
    counts = np.zeros(workers)
    for samples in classes:
        shares = generator.dirichlet(np.full(workers, float(alpha)))
        if balanced and (shares * (counts < full)).sum() > 0:
            shares = shares * (counts < full)
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(samples)).astype(int)
        for worker, part in enumerate(np.split(generator.permutation(samples), cuts)):
            owned[worker].append(part)
            counts[worker] += len(part)
    return [np.concatenate(parts) for parts in owned]


def _check_alpha(alpha: Any) -> None:
    if not isinstance(alpha, Real) or isinstance(alpha, bool) or not 0 < float(alpha) < math.inf:
        raise ValueError(
            f"alpha {shown(alpha)} is not a number above 0: 0.1 is very uneven, 100 nearly even"
        )


SPLITS: Names[Callable[..., Split]] = Names(
    "split",
    {
        "by_client": by_client,
        "by_label": by_label,
        "by_quantity": by_quantity,
        "dirichlet": dirichlet,
        "iid": iid,
        "saved": saved,
        "shards": shards,
        "writer": writer,
    },
)
BY_LABEL = ("by_label", "dirichlet", "shards")
"""Those that look at the class of each sample."""
BY_CLIENT = ("by_client", "writer")
"""Those that take the client of each sample in place of its label."""
