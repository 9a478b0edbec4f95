"""CIFAR-10 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009)."""

from pathlib import Path

import numpy as np
import torch

from partavg.data import cache, pickles
from partavg.data.dataset import Dataset
from partavg.data.source import Download, FileLayout, Source, Tensors

_FOLDER = "cifar-10-batches-py"
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


def load(root: Path) -> Dataset:
    """Images [n, 3, 32, 32] of bytes, and 10 classes."""
    return cache.load_images(SOURCE, root, classes=10)


def _read(root: Path) -> Tensors:
    tensors = {}
    for part, names in {"train": _TRAIN, "test": ["test_batch"]}.items():
        paths = [root / _FOLDER / name for name in names]
        batches = [pickles.load(path.read_bytes(), path) for path in paths]
        images = np.concatenate([batch["data"] for batch in batches])
        labels = np.concatenate([batch["labels"] for batch in batches])
        tensors[f"{part}_images"] = torch.from_numpy(images).view(-1, 3, 32, 32)
        tensors[f"{part}_labels"] = torch.from_numpy(labels)
    return tensors


SOURCE = Source(
    name="cifar10",
    about="60,000 color images 32 × 32, 10 classes",
    layouts=(
        FileLayout(
            {
                f"{_FOLDER}/data_batch_1": (
                    "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"
                ),
                f"{_FOLDER}/data_batch_2": (
                    "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"
                ),
                f"{_FOLDER}/data_batch_3": (
                    "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"
                ),
                f"{_FOLDER}/data_batch_4": (
                    "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"
                ),
                f"{_FOLDER}/data_batch_5": (
                    "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"
                ),
                f"{_FOLDER}/test_batch": (
                    "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"
                ),
            },
            _read,
        ),
    ),
    by_hand=f"put cifar-10-python.tar.gz's folder {_FOLDER} there",
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            target=_FOLDER,
            members=_FOLDER + r"/(data_batch_[1-5]|test_batch|batches\.meta)",
        ),
    ),
)
