"""A subset of Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017) that comes with the package.

The first 12,000 training and the first 2,000 test images; MIT licence, see
`fashion_subset.LICENSE`. Made by `tools/make_fashion_subset.py`.
"""

import lzma
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from partavg.data.dataset import Dataset, Samples

_TRAIN = 12_000


def load(root: Path) -> Dataset:
    """14,000 of Fashion-MNIST's images.

    Bytes [n, 1, 28, 28], and 10 classes; nothing is needed from `root`.
    """
    rows = np.frombuffer(unpacked(), np.uint8).reshape(-1, 785)
    images = torch.from_numpy(rows[:, 1:].copy()).view(-1, 1, 28, 28)
    labels = torch.from_numpy(rows[:, 0].astype(np.int64))
    return Dataset(
        train=Samples(images[:_TRAIN], labels[:_TRAIN]),
        test=Samples(images[_TRAIN:], labels[_TRAIN:]),
        classes=10,
    )


@cache  # it takes as long as hundreds of steps
def unpacked() -> bytes:
    """Each image with its label in front of it."""
    packed = resources.files("partavg.data").joinpath("fashion_subset.xz").read_bytes()
    return lzma.decompress(packed)
