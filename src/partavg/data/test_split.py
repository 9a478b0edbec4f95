"""Test samples for each client, like its training samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.arguments import check_whole
from partavg.core.seeds import fold
from partavg.data.ids import class_labels, numbered_alike
from partavg.data.ownership import Split, checked_split

Counts = NDArray[np.int64]
"""Samples of each client and class [clients, classes]."""


def split_alike(labels: Any, split: Sequence[Any], test_labels: Any, seed: int = 0) -> Split:
    """Deal test samples out, each class in the proportions in which clients own it in training.

    Every client gets at least one sample of a class that it owns, as long as there are enough. A
    class that nobody owns is dealt to nobody. Samples without classes are dealt by how many
    training samples clients own.

    >>> labels, test_labels = torch.arange(100) % 2, torch.arange(20) % 2
    >>> split = [torch.arange(0, 100, 2), torch.arange(1, 100, 2)]  # a class each
    >>> [test_labels[own].tolist() for own in split_alike(labels, split, test_labels)]
    [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
    """
    known, tested = _numbered(_classes(labels), _classes(test_labels))
    check_whole("seed", seed, 0)
    split = checked_split(split, len(known))
    width = int(max(known.max(initial=0), tested.max(initial=0))) + 1
    owned = np.stack([np.bincount(known[own.cpu().numpy()], minlength=width) for own in split])
    dealt = _shares(owned, np.bincount(tested, minlength=width))
    _fill_(dealt, owned)
    generator = np.random.default_rng(fold(seed, "test split"))
    found: list[list[NDArray[np.int64]]] = [[] for _ in split]
    for label in range(width):
        samples = generator.permutation(np.flatnonzero(tested == label))
        pieces = np.split(samples, np.cumsum(dealt[:, label]))  # and what nobody gets
        for own, piece in zip(found, pieces, strict=False):
            own.append(piece)
    return [torch.from_numpy(np.sort(np.concatenate(own))) for own in found]


def split_by_owner(owners: Any, split: Sequence[Any], test_owners: Any) -> Split:
    """Give each test sample to the client that owns most training samples of the same owner.

    Owners are numbers of persons or devices, as of femnist's writers. What is of an owner that no
    client knows goes to nobody.

    >>> writers, split = torch.tensor([5, 5, 7, 8]), [torch.tensor([0, 1, 2]), torch.tensor([3])]
    >>> split_by_owner(writers, split, torch.tensor([8, 7, 9, 5]))
    [tensor([1, 3]), tensor([0])]
    """
    numbers, tested = numbered_alike(owners, test_owners)
    if numbers is None or tested is None:
        raise ValueError("owners or test_owners are None: say whose each sample is")
    known, split = numbers.numpy(), checked_split(split, len(numbers))
    most: dict[int, tuple[int, int]] = {}
    for client, own in enumerate(split):
        for owner, count in zip(
            *np.unique(known[own.cpu().numpy()], return_counts=True), strict=True
        ):
            if int(count) > most.get(int(owner), (0, 0))[0]:
                most[int(owner)] = int(count), client
    client_of = [most.get(owner, (0, -1))[1] for owner in tested.tolist()]
    clients = torch.tensor(client_of, dtype=torch.long)
    return [(clients == client).nonzero().flatten() for client in range(len(split))]


def _classes(labels: Any) -> NDArray[np.int64]:
    """The class of each sample; one for all where there are none."""
    if isinstance(labels, Tensor) and (labels.ndim > 1 or labels.is_floating_point()):
        return np.zeros(len(labels), np.int64)
    return class_labels(labels)


def _numbered(
    known: NDArray[np.int64], tested: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Classes counted from 0, whatever their labels: -1 and 1, or very large ones."""
    _, numbers = np.unique(np.concatenate([known, tested]), return_inverse=True)
    return numbers[: len(known)], numbers[len(known) :]


def _shares(owned: Counts, available: NDArray[np.int64]) -> Counts:
    """How many test samples of each class each client gets.

    Less than one more or less than its share of a class; what rounding leaves over goes to those
    who have got least of what all classes so far should have given them.
    """
    dealt = np.zeros_like(owned)
    missing = np.zeros(len(owned))
    for label, count in enumerate(available):
        total = owned[:, label].sum()
        if not total:
            continue
        share = owned[:, label] * count / total
        dealt[:, label] = np.floor(share)
        missing += share - dealt[:, label]
        partly = np.flatnonzero(share > dealt[:, label])
        poorest = partly[np.argsort(-missing[partly], kind="stable")]
        lucky = poorest[: count - dealt[:, label].sum()]
        dealt[lucky, label] += 1
        missing[lucky] -= 1
    return dealt


def _fill_(dealt: Counts, owned: Counts) -> None:
    """Give clients without any sample one of a class that they own, from whoever has most."""
    for client in np.flatnonzero(dealt.sum(1) == 0):
        spare = np.where((owned[client] > 0) & (dealt.sum(1)[:, None] > 1), dealt, 0)
        giver, label = np.unravel_index(spare.argmax(), spare.shape)
        if spare[giver, label]:
            dealt[giver, label] -= 1
            dealt[client, label] += 1
