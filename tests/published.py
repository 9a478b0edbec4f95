"""Tiny datasets in the formats of the published files, and their sums in place of the real ones."""

import gzip
import json
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from partavg.data import SOURCES, cifar10, cifar100, fashion_mnist, femnist, imdb, svhn
from partavg.data.source import Source, sha256

GENERATOR = np.random.default_rng(0)
COLOR = GENERATOR.integers(0, 256, (6, 3, 32, 32), np.uint8)
GRAY = GENERATOR.integers(0, 256, (6, 1, 28, 28), np.uint8)
LABELS = [3, 9, 0, 7]
"""The first four images are for training with these labels, the others for testing."""
TEST_LABELS = [1, 2]


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_cifar10(root: Path) -> None:
    batches = {f"data_batch_{i}": ([i % 4], [LABELS[i % 4]]) for i in range(1, 6)}
    for name, (images, labels) in {**batches, "test_batch": ([4, 5], TEST_LABELS)}.items():
        batch = {"data": COLOR[images].reshape(-1, 3072), "labels": labels, "batch_label": b"\xe9"}
        write(root / "cifar-10-batches-py" / name, pickle.dumps(batch, 2))


def write_cifar100(root: Path) -> None:
    for name, images, labels in (("train", COLOR[:4], LABELS), ("test", COLOR[4:], TEST_LABELS)):
        rows = images.reshape(-1, 3072)
        batch = {"data": rows, "fine_labels": labels, "coarse_labels": [5] * len(rows)}
        write(root / "cifar-100-python" / name, pickle.dumps(batch, 2))


def write_cifar100_binary(root: Path) -> None:
    for name, images, labels in (("train", COLOR[:4], LABELS), ("test", COLOR[4:], TEST_LABELS)):
        rows = zip(labels, images, strict=True)
        content = b"".join(bytes([5, label]) + image.tobytes() for label, image in rows)
        write(root / "cifar-100-binary" / f"{name}.bin", content)


def write_fashion_mnist(root: Path, packed: bool = True) -> None:
    for name, images, labels in (("train", GRAY[:4], LABELS), ("t10k", GRAY[4:], TEST_LABELS)):
        contents = {
            "images-idx3": struct.pack(">iiii", 0x803, len(images), 28, 28) + images.tobytes(),
            "labels-idx1": struct.pack(">ii", 0x801, len(labels)) + bytes(labels),
        }
        for kind, content in contents.items():
            path = root / "FashionMNIST" / "raw" / f"{name}-{kind}-ubyte"
            if packed:
                write(path.with_name(path.name + ".gz"), gzip.compress(content))
            else:
                write(path, content)


def write_svhn(root: Path, folder: str = "", compressed: bool = True) -> None:
    parts = {
        "train": (COLOR[:4], LABELS),
        "test": (COLOR[4:], TEST_LABELS),
        "extra": (COLOR[2:4], LABELS[2:]),
    }
    for name, (images, labels) in parts.items():
        digits = np.array([[label or 10] for label in labels])
        content = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
        # MATLAB stores an array of doubles as bytes where they are small whole numbers.
        for matrix in (
            _matrix(b"X", 9, images.transpose(2, 3, 1, 0)),
            _matrix(b"y", 6, digits.astype(np.uint8)),
        ):
            packed = zlib.compress(matrix)
            content += struct.pack("<II", 15, len(packed)) + packed if compressed else matrix
        write(root / folder / f"{name}_32x32.mat", content)


def _matrix(name: bytes, kind: int, array: np.ndarray) -> bytes:
    data = array.tobytes(order="F")
    axes = struct.pack(f"<{array.ndim}i", *array.shape)
    content = struct.pack("<IIII", 6, 8, kind, 0) + _element(5, axes)
    content += struct.pack("<HH4s", 1, len(name), name) + _element(2, data)
    return struct.pack("<II", 14, len(content)) + content


def _element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


REVIEWS = {
    "train/neg": ["Bad film.<br /><br />A bad, BAD film", "don't see the film_"],
    "train/pos": ["the film is a film", "Good!"],
    "test/neg": ["bad acting", "a film"],
    "test/pos": ["the 'good' film", "good"],
}


def write_imdb(root: Path) -> None:
    for folder, texts in REVIEWS.items():
        for number, text in enumerate(texts):
            write(root / "aclImdb" / folder / f"{number}_7.txt", text.encode())


def write_imdb_keras(root: Path) -> None:
    reviews = np.empty(2, object)
    reviews[:] = [[1, 5, 2], [3]]
    arrays = {"x_train": reviews, "x_test": reviews[::-1]}
    np.savez(root / "imdb.npz", y_train=np.array([0, 1]), y_test=np.array([1, 0]), **arrays)


WRITERS = {"f2": [0, 1], "f1": [2, 3]}


def write_femnist(root: Path) -> None:
    for part, first in (("train", 0), ("test", 4)):
        for number, (writer, images) in enumerate(WRITERS.items()):
            chosen = [4 + number] if first else images
            pixels = [[round(x / 255, 6) for x in GRAY[i].ravel().tolist()] for i in chosen]
            labels = [(LABELS + TEST_LABELS)[i] for i in chosen]
            content = leaf({writer: (pixels, labels)})
            write(root / "femnist" / part / f"all_data_{number}.json", content)


def leaf(writers: dict[str, tuple[list[list[float]], list[int]]]) -> bytes:
    content = {
        "users": list(writers),
        "num_samples": [len(labels) for _, labels in writers.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in writers.items()},
    }
    return json.dumps(content).encode()


PUBLISHED: dict[str, tuple[ModuleType, Callable[[Path], None]]] = {
    "cifar10": (cifar10, write_cifar10),
    "cifar100": (cifar100, write_cifar100),
    "fashion_mnist": (fashion_mnist, write_fashion_mnist),
    "femnist": (femnist, write_femnist),
    "imdb": (imdb, write_imdb),
    "svhn": (svhn, write_svhn),
}


def known(source: Source, root: Path) -> Source:
    """The source with the sums of the files that are under the root."""
    layouts = [
        replace(
            layout,
            files={
                name: sha256(root / name) if known and (root / name).exists() else known
                for name, known in layout.files.items()
            },
        )
        for layout in source.layouts
    ]
    return replace(source, layouts=tuple(layouts))


def admit(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the files under the root for those that were published."""
    module, _ = PUBLISHED[name]
    monkeypatch.setattr(imdb, "REVIEWS", 2)
    for attribute in ("SOURCE", "EXTRA"):
        if source := getattr(module, attribute, None):
            monkeypatch.setattr(module, attribute, known(source, root))
            monkeypatch.setitem(SOURCES, source.name, getattr(module, attribute))
