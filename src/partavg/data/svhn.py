"""Street View House Numbers, cropped digits (Netzer et al., NIPS workshop, 2011)."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from partavg.data import cache, mat
from partavg.data.dataset import Dataset, Samples
from partavg.data.source import Download, FileLayout, Source, Tensors

_URL = "http://ufldl.stanford.edu/housenumbers"
_TRAIN, _TEST, _EXTRA = "train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"
_KNOWN = {
    _TRAIN: (
        182_040_794,
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    _TEST: (
        64_275_384,
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
    _EXTRA: (
        1_329_278_602,
        "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    ),
}


def load(root: Path, *, extra: bool = False) -> Dataset:
    """Images [n, 3, 32, 32] of bytes, and 10 classes; `extra` adds easier images to train on."""
    stored = cache.load(SOURCE, root)
    train = Samples(stored["train_images"], stored["train_labels"])
    if extra:
        more = cache.load(EXTRA, root)
        train = Samples(
            torch.cat([train.inputs, more["extra_images"]]),
            torch.cat([train.targets, more["extra_labels"]]),
        )
    return Dataset(train, test=Samples(stored["test_images"], stored["test_labels"]), classes=10)


def _read(root: Path, folder: str, files: tuple[str, ...]) -> Tensors:
    """Images are X [row, column, color, n], labels y [n, 1], where 10 is the digit 0."""
    tensors = {}
    for name in files:
        part = name.partition("_")[0]
        arrays = mat.read(root / folder / name)
        images = np.ascontiguousarray(arrays["X"].transpose(3, 2, 0, 1))
        tensors[f"{part}_images"] = torch.from_numpy(images)
        tensors[f"{part}_labels"] = torch.from_numpy(arrays["y"].astype(np.int64)[:, 0] % 10)
    return tensors


def _source(name: str, about: str, files: tuple[str, ...]) -> Source:
    return Source(
        name,
        about,
        layouts=tuple(
            FileLayout(
                {f"{folder}{file}": _KNOWN[file][1] for file in files},
                partial(_read, folder=folder, files=files),
            )
            for folder in ("", "svhn/")
        ),
        by_hand=f"put {' and '.join(files)} there",
        downloads=tuple(Download(f"{_URL}/{file}", *_KNOWN[file], target=file) for file in files),
    )


SOURCE = _source("svhn", "99,289 color images 32 × 32, 10 digits", (_TRAIN, _TEST))
EXTRA = _source("svhn_extra", "531,131 more images for svhn with extra = true", (_EXTRA,))
