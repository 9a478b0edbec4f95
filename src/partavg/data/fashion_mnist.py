"""Fashion-MNIST (Xiao, Rasul, Vollgraf, arXiv 1708.07747, 2017)."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partavg.data import cache
from partavg.data.dataset import Dataset
from partavg.data.source import Download, FileLayout, Source, Tensors

_FOLDER = "FashionMNIST/raw"
_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_PACKED = {
    "train-images-idx3-ubyte.gz": (
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "train-labels-idx1-ubyte.gz": (
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "t10k-images-idx3-ubyte.gz": (
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
_PLAIN: dict[str, str | None] = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def load(root: Path) -> Dataset:
    """Images [n, 1, 28, 28] of bytes, and 10 classes."""
    return cache.load_images(SOURCE, root, classes=10)


def _read_packed(root: Path) -> Tensors:
    return _read(lambda name: gzip.decompress((root / _FOLDER / f"{name}.gz").read_bytes()))


def _read_plain(root: Path) -> Tensors:
    return _read(lambda name: (root / _FOLDER / name).read_bytes())


def _read(content: Callable[[str], bytes]) -> Tensors:
    tensors = {}
    for part, prefix in {"train": "train", "test": "t10k"}.items():
        images = _array(content(f"{prefix}-images-idx3-ubyte"))
        tensors[f"{part}_images"] = images.unsqueeze(1)
        tensors[f"{part}_labels"] = _array(content(f"{prefix}-labels-idx1-ubyte")).long()
    return tensors


def _array(content: bytes) -> Tensor:
    """The array of bytes in an IDX file, whose fourth byte counts the axes."""
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return torch.tensor(np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape))


SOURCE = Source(
    name="fashion_mnist",
    about="70,000 gray images 28 × 28, 10 classes",
    layouts=(
        FileLayout(
            {f"{_FOLDER}/{name}": sum_ for name, (_, sum_) in _PACKED.items()}, _read_packed
        ),
        FileLayout({f"{_FOLDER}/{name}": sum_ for name, sum_ in _PLAIN.items()}, _read_plain),
    ),
    by_hand=f"put {', '.join(_PACKED)} there in {_FOLDER}",
    downloads=tuple(
        Download(f"{_URL}/{name}", size, sum_, target=f"{_FOLDER}/{name}")
        for name, (size, sum_) in _PACKED.items()
    ),
)
