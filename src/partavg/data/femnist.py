"""Handwritten digits and letters by writer (Caldas et al., "LEAF", arXiv 1812.01097, 2018)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.seeds import fold
from partavg.data import cache
from partavg.data.dataset import Dataset, Samples
from partavg.data.source import FileLayout, Source, Tensors

CLASSES = 62
_PIXELS = 28 * 28


def load(root: Path, *, fraction: float = 1.0, seed: int = 0) -> Dataset:
    """Images [n, 1, 28, 28] of bytes, 62 classes, and the writers of the training images.

    `fraction` keeps that part of each writer's training images, at least one, drawn by `seed`.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction {fraction} is not above 0 and at most 1: use for example 0.1")
    stored = cache.load(SOURCE, root)
    images, labels = stored["train_images"], stored["train_labels"]
    writers = stored["train_writers"]
    if fraction < 1:
        names = bytes(stored["names"].numpy()).decode().split("\n")
        kept = _draw(writers, names, fraction, seed)
        images, labels, writers = images[kept], labels[kept], writers[kept]
    return Dataset(
        train=Samples(images, labels),
        test=Samples(stored["test_images"], stored["test_labels"]),
        classes=CLASSES,
        writers=writers,
        test_writers=stored.get("test_writers"),  # a cache of 0.1 has none
    )


def _draw(
    writers: Int[Tensor, "n"], names: list[str], fraction: float, seed: int
) -> Int[Tensor, "_"]:
    """The samples to keep; a writer's do not depend on the other writers."""
    known = writers.numpy()
    ends = np.cumsum(np.bincount(known))[:-1]
    kept = []
    for name, samples in zip(names, np.split(known.argsort(kind="stable"), ends), strict=True):
        count = max(1, round(fraction * len(samples)))
        generator = np.random.default_rng(fold(seed, "femnist", name))
        kept.append(generator.permutation(samples)[:count])
    return torch.from_numpy(np.sort(np.concatenate(kept)))


def _read(root: Path) -> Tensors:
    tensors: Tensors = {}
    writers_of: dict[str, list[str]] = {}
    for part in ("train", "test"):
        images, labels, names = [], [], []
        for path in sorted((root / "femnist" / part).glob("*.json")):
            for name, pixels, classes in _writers(path):
                images.append(pixels)
                labels.append(classes)
                names += [name] * len(classes)
        if not names:
            raise ValueError(f"{root / 'femnist' / part} holds no images: {SOURCE.by_hand}")
        tensors[f"{part}_images"] = torch.from_numpy(np.concatenate(images)).view(-1, 1, 28, 28)
        tensors[f"{part}_labels"] = torch.from_numpy(np.concatenate(labels))
        writers_of[part] = names
    known, tensors["train_writers"] = _numbered(writers_of["train"])
    tensors["names"] = torch.tensor(list("\n".join(known).encode()), dtype=torch.uint8)
    # Those who wrote no training image have numbers of their own, behind the others.
    everybody = dict.fromkeys([*known, *writers_of["test"]])
    number = {name: place for place, name in enumerate(everybody)}
    tensors["test_writers"] = torch.tensor([number[name] for name in writers_of["test"]])
    return tensors


def _numbered(names: list[str]) -> tuple[list[str], Int[Tensor, "_"]]:
    """The names, each once, and the number of each writer."""
    known, writers = np.unique(names, return_inverse=True)
    return known.tolist(), torch.from_numpy(writers)


def _writers(path: Path) -> Iterator[tuple[str, NDArray[np.uint8], NDArray[np.int64]]]:
    """The writers in one of LEAF's files, with their images and labels."""
    try:
        content = json.loads(path.read_bytes())
        for name, count in zip(content["users"], content["num_samples"], strict=True):
            yield name, *_samples(content["user_data"][name], count, name)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is not as LEAF writes it ({error}): {SOURCE.by_hand}") from None


def _samples(
    data: dict[str, Any], count: int, name: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """LEAF's pixels are k / 255 with 6 decimals."""
    pixels = np.array(data["x"] or np.empty((0, _PIXELS)), np.float64)
    labels = np.array(data["y"], np.int64)
    if not count == len(pixels) == len(labels):
        raise ValueError(f"{name} has {len(pixels)} images, {len(labels)} labels, not {count}")
    if pixels.shape[1:] != (_PIXELS,) or not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError(f"the images of {name} are not {_PIXELS} values from 0 to 1")
    if not ((labels >= 0) & (labels < CLASSES)).all():
        raise ValueError(f"the labels of {name} are not from 0 to {CLASSES - 1}")
    return np.rint(255 * pixels).astype(np.uint8), labels


SOURCE = Source(
    name="femnist",
    about="images 28 × 28 of 62 digits and letters, by writer",
    layouts=(FileLayout({"femnist/train/*.json": None, "femnist/test/*.json": None}, _read),),
    by_hand=(
        "make it with LEAF, ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in its folder "
        "data/femnist, and put data/train and data/test from there into femnist"
    ),
)
