"""Film reviews, good or bad (Maas et al., "Learning word vectors for sentiment analysis", 2011).

Words are numbered as in Keras's copy of the dataset: 0 is padding, 1 begins a review, 2 is a word
outside the vocabulary, 3 is not used, then come the words by falling frequency.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from numpy.lib import format as npy
from torch import Tensor

from partavg.data import cache, pickles
from partavg.data.dataset import Dataset, Samples
from partavg.data.source import Download, FileLayout, Source, Tensors

REVIEWS = 12_500  # in each folder
_START, _UNKNOWN, _BEFORE_FIRST = 1, 2, 3
_FOLDERS = [f"aclImdb/{part}/{label}" for part in ("train", "test") for label in ("neg", "pos")]
_WORD = re.compile(r"'*\w[\w']*")
_NOT_A_WORD = re.compile(r"<br />|_")


def load(root: Path, *, words: int = 10_000, length: int = 200) -> Dataset:
    """Reviews [n, length] of word numbers below `words`, padded and cut at the front; 2 classes."""
    if words <= _BEFORE_FIRST + 1:
        raise ValueError(
            f"words {words} leaves no room for a word: use {_BEFORE_FIRST + 2} or more"
        )
    if length < 1:
        raise ValueError(f"length {length} leaves nothing of a review: use 1 or more")
    stored = cache.load(SOURCE, root)
    train, test = (
        Samples(
            _rows(stored[f"{part}_ranks"], stored[f"{part}_ends"], words, length),
            stored[f"{part}_labels"],
        )
        for part in ("train", "test")
    )
    return Dataset(train, test, classes=2)


def _rows(
    ranks: Int[Tensor, "w"], ends: Int[Tensor, "n"], words: int, length: int
) -> Int[Tensor, "n length"]:
    """The last words of each review; `ends` says where the reviews end in `ranks`."""
    numbers = ranks.long() + _BEFORE_FIRST
    numbers[(ranks == 0) | (numbers >= words)] = _UNKNOWN
    starts = ends.roll(1)
    starts[0] = 0
    where = ends[:, None] - length + torch.arange(length)
    before = starts[:, None] - 1  # the place of the mark that begins a review
    rows = numbers[where.clamp(min=0)]
    rows[where == before] = _START
    rows[where < before] = 0
    return rows


def _read_texts(root: Path) -> Tensors:
    """Rank the words of the training reviews, ties alphabetical; 0 is a word not among them."""
    words = {folder: _tokens(root / folder) for folder in _FOLDERS}
    training = chain.from_iterable(words[folder] for folder in _FOLDERS[:2])
    counts = Counter(chain.from_iterable(training))
    order = sorted(counts, key=lambda word: (-counts[word], word))
    ranks = {word: rank for rank, word in enumerate(order, 1)}
    tensors: Tensors = {}
    for part, folders in {"train": _FOLDERS[:2], "test": _FOLDERS[2:]}.items():
        texts = [text for folder in folders for text in words[folder]]
        numbered = [[ranks.get(word, 0) for word in text] for text in texts]
        labels = [label for label, folder in enumerate(folders) for _ in words[folder]]
        tensors |= _packed(part, numbered, torch.tensor(labels))
    return tensors


def _tokens(folder: Path) -> list[list[str]]:
    lower = (text.lower() for _, text in reviews(folder))
    return [_WORD.findall(_NOT_A_WORD.sub(" ", text)) for text in lower]


def reviews(folder: Path) -> Iterator[tuple[str, str]]:
    """The reviews in a folder as they were written, each with its stars: names end in them."""
    paths = sorted(folder.glob("*.txt"))
    if len(paths) != REVIEWS:
        raise ValueError(
            f"{folder} holds {len(paths)} reviews instead of {REVIEWS}: "
            f"delete it and {SOURCE.remedy}"
        )
    for path in paths:
        yield path.stem.rpartition("_")[2], path.read_text(encoding="utf-8")


def _read_keras(root: Path) -> Tensors:
    """Keras's copy holds ranks, counted from 1, as arrays of lists."""
    path = root / "imdb.npz"
    tensors: Tensors = {}
    with zipfile.ZipFile(path) as archive:
        for part in ("train", "test"):
            with archive.open(f"x_{part}.npy") as file:
                npy.read_magic(file)
                npy.read_array_header_1_0(file)
                reviews = pickles.load(file.read(), path)
            with archive.open(f"y_{part}.npy") as file:
                labels = npy.read_array(file, allow_pickle=False)
            tensors |= _packed(part, list(reviews), torch.from_numpy(labels.astype(np.int64)))
    return tensors


def _packed(part: str, reviews: list[list[int]], labels: Int[Tensor, "n"]) -> Tensors:
    """All reviews in one row, which takes less room than a table."""
    ends = np.cumsum([len(review) for review in reviews])
    ranks = np.fromiter(chain.from_iterable(reviews), np.int32, ends[-1])
    return {
        f"{part}_ranks": torch.from_numpy(ranks),
        f"{part}_ends": torch.from_numpy(ends),
        f"{part}_labels": labels,
    }


SOURCE = Source(
    name="imdb",
    about="50,000 film reviews, good or bad",
    layouts=(
        FileLayout(dict.fromkeys(_FOLDERS), _read_texts),
        FileLayout(
            {"imdb.npz": "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"},
            _read_keras,
        ),
    ),
    by_hand="put aclImdb_v1.tar.gz's folder aclImdb or Keras's imdb.npz there",
    downloads=(
        Download(
            "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            84_125_825,
            "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
            target="aclImdb",
            members=r"aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt",
        ),
    ),
)
