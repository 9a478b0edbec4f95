"""CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009)."""

from pathlib import Path

import numpy as np
import torch

from partavg.data import cache, pickles
from partavg.data.dataset import Dataset
from partavg.data.source import Download, FileLayout, Source, Tensors


def load(root: Path) -> Dataset:
    """Images [n, 3, 32, 32] of bytes, and 100 classes: the fine labels."""
    return cache.load_images(SOURCE, root, classes=100)


def _read_pickles(root: Path) -> Tensors:
    tensors = {}
    for part in ("train", "test"):
        path = root / "cifar-100-python" / part
        batch = pickles.load(path.read_bytes(), path)
        tensors[f"{part}_images"] = torch.from_numpy(batch["data"]).view(-1, 3, 32, 32)
        tensors[f"{part}_labels"] = torch.tensor(batch["fine_labels"])
    return tensors


def _read_binary(root: Path) -> Tensors:
    """Rows of a coarse label, a fine label and 3072 pixels, a byte each."""
    tensors = {}
    for part in ("train", "test"):
        path = root / "cifar-100-binary" / f"{part}.bin"
        rows = torch.from_numpy(np.fromfile(path, np.uint8)).view(-1, 3074)
        tensors[f"{part}_images"] = rows[:, 2:].reshape(-1, 3, 32, 32)
        tensors[f"{part}_labels"] = rows[:, 1].long()
    return tensors


SOURCE = Source(
    name="cifar100",
    about="60,000 color images 32 × 32, 100 classes",
    layouts=(
        FileLayout(
            {
                "cifar-100-python/train": (
                    "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"
                ),
                "cifar-100-python/test": (
                    "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"
                ),
            },
            _read_pickles,
        ),
        FileLayout(
            {
                "cifar-100-binary/train.bin": (
                    "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"
                ),
                "cifar-100-binary/test.bin": (
                    "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"
                ),
            },
            _read_binary,
        ),
    ),
    by_hand=(
        "put cifar-100-python.tar.gz's folder cifar-100-python or cifar-100-binary.tar.gz's folder "
        "cifar-100-binary there"
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            169_001_437,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            target="cifar-100-python",
            members="cifar-100-python/(train|test|meta)",
        ),
    ),
)
