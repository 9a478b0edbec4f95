"""Every dataset, read from tiny files in its published formats."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from partavg.data import DATASETS, SOURCES
from partavg.data.dataset import Dataset, Samples
from published import (
    COLOR,
    GRAY,
    LABELS,
    PUBLISHED,
    TEST_LABELS,
    admit,
    leaf,
    write,
    write_cifar100_binary,
    write_fashion_mnist,
    write_femnist,
    write_imdb,
    write_imdb_keras,
    write_svhn,
)

NAMES = sorted(PUBLISHED)
TEXTS = ("imdb_text", "king_james", "text")  # see test_text.py


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset whose tiny files are in tmp_path."""
    PUBLISHED[request.param][1](tmp_path)
    admit(request.param, tmp_path, monkeypatch)
    return request.param


def equal(one: Dataset, other: Dataset) -> bool:
    tensors = [(*data.train, *data.test) for data in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def check_images(data: Dataset, images: np.ndarray) -> None:
    assert np.array_equal(data.train.inputs, images[:4])
    assert data.train.targets.tolist() == LABELS
    assert np.array_equal(data.test.inputs, images[4:])
    assert data.test.targets.tolist() == TEST_LABELS


def test_every_dataset_is_tested() -> None:
    assert sorted({*PUBLISHED, "fashion_subset", *TEXTS}) == sorted(DATASETS)
    assert sorted({*PUBLISHED, "svhn_extra"}) == sorted(SOURCES)


def test_shapes_and_types(name: str, tmp_path: Path) -> None:
    data = DATASETS[name](tmp_path)
    for samples in (data.train, data.test):
        assert isinstance(samples, Samples)
        assert samples.inputs.dtype == (torch.int64 if name == "imdb" else torch.uint8)
        assert samples.inputs.shape == (len(samples.targets), *data.shape)
        assert samples.inputs.is_contiguous()
        assert samples.targets.dtype == torch.int64
        assert 0 <= samples.targets.min() <= samples.targets.max() < data.classes
    assert data.writers is None or data.writers.shape == data.train.targets.shape


def test_missing_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    empty = tmp_path / "nowhere"
    with pytest.raises(ValueError, match=f"^{name} is not in {empty}: ") as caught:
        DATASETS[name](empty)
    if name == "cifar10":
        assert str(caught.value) == (
            f'cifar10 is not in {empty}: run "partavg data fetch cifar10", or put '
            "cifar-10-python.tar.gz's folder cifar-10-batches-py there"
        )


def test_an_incomplete_dataset_names_what_it_lacks(name: str, tmp_path: Path) -> None:
    lacking = next(iter(SOURCES[name].layouts[0].files))
    for path in tmp_path.glob(lacking):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match="lacks") as caught:
        DATASETS[name](tmp_path)
    assert f"{name} in {tmp_path} lacks {lacking}: " in str(caught.value)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"femnist", "imdb"}), indirect=True)
def test_another_file_under_the_name_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / list(SOURCES[name].layouts[0].files)[-1]
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(ValueError, match="is not the published file, its sha256 is") as caught:
        DATASETS[name](tmp_path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / ".partavg").exists()


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PUBLISHED["cifar10"][1](tmp_path)
    admit("cifar10", tmp_path, monkeypatch)
    data = DATASETS["cifar10"](tmp_path)
    order = [1, 2, 3, 0, 1]  # five batches of one
    assert np.array_equal(data.train.inputs, COLOR[order])
    assert data.train.targets.tolist() == [LABELS[i] for i in order]
    assert np.array_equal(data.test.inputs, COLOR[4:])
    assert data.test.targets.tolist() == TEST_LABELS


@pytest.mark.parametrize("write_files", [PUBLISHED["cifar100"][1], write_cifar100_binary])
def test_cifar100(write_files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    admit("cifar100", tmp_path, monkeypatch)
    check_images(DATASETS["cifar100"](tmp_path), COLOR)


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion_mnist(tmp_path, packed)
    admit("fashion_mnist", tmp_path, monkeypatch)
    check_images(DATASETS["fashion_mnist"](tmp_path), GRAY)


@pytest.mark.parametrize(("folder", "compressed"), [("", True), ("svhn", False)])
def test_svhn(
    folder: str, compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_svhn(tmp_path, folder, compressed)
    admit("svhn", tmp_path, monkeypatch)
    check_images(DATASETS["svhn"](tmp_path), COLOR)
    more = DATASETS["svhn"](tmp_path, extra=True)
    assert np.array_equal(more.train.inputs, COLOR[[0, 1, 2, 3, 2, 3]])
    assert more.train.targets.tolist() == LABELS + LABELS[2:]
    assert len(more.test.inputs) == 2


def test_imdb_ranks_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """film 5 times, bad 3, a 2, the 2, then don't, good, is, see, by the alphabet."""
    write_imdb(tmp_path)
    admit("imdb", tmp_path, monkeypatch)
    film, bad, a, the, dont, good, is_, see = range(4, 12)
    data = DATASETS["imdb"](tmp_path, length=7)
    assert data.train.inputs.tolist() == [
        [1, bad, film, a, bad, bad, film],
        [0, 0, 1, dont, see, the, film],
        [0, 1, the, film, is_, a, film],
        [0, 0, 0, 0, 0, 1, good],
    ]
    assert data.train.targets.tolist() == [0, 0, 1, 1]
    assert data.test.inputs[0].tolist() == [0, 0, 0, 0, 1, bad, 2]
    assert data.test.inputs[2].tolist() == [0, 0, 0, 1, the, 2, film]
    short = DATASETS["imdb"](tmp_path, words=7, length=3)
    assert short.train.inputs.tolist() == [[bad, bad, film], [2, 2, film], [2, a, film], [0, 1, 2]]


def test_imdb_of_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_imdb_keras(tmp_path)
    admit("imdb", tmp_path, monkeypatch)
    data = DATASETS["imdb"](tmp_path, words=8, length=5)
    assert data.train.inputs.tolist() == [[0, 1, 4, 2, 5], [0, 0, 0, 1, 6]]
    assert data.train.targets.tolist() == [0, 1]
    assert data.test.inputs.tolist() == [[0, 0, 0, 1, 6], [0, 1, 4, 2, 5]]
    assert data.test.targets.tolist() == [1, 0]


def test_imdb_with_a_review_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_imdb(tmp_path)
    admit("imdb", tmp_path, monkeypatch)
    (tmp_path / "aclImdb/test/pos/1_7.txt").unlink()
    with pytest.raises(
        ValueError, match="test/pos holds 1 reviews instead of 2: delete it and run"
    ):
        DATASETS["imdb"](tmp_path)


def test_femnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_femnist(tmp_path)
    data = DATASETS["femnist"](tmp_path)
    check_images(data, GRAY)
    assert data.writers.tolist() == [1, 1, 0, 0]
    assert data.test_writers.tolist() == [1, 0]
    assert data.reduced(4, 1).test_writers.tolist() == [1]


def test_writers_of_test_images_only_have_other_numbers(tmp_path: Path) -> None:
    pixels = [[0.0] * 784]
    write(tmp_path / "femnist/train/all.json", leaf({"b": (pixels, [0]), "a": (pixels, [1])}))
    write(tmp_path / "femnist/test/all.json", leaf({"c": (pixels, [1]), "b": (pixels, [0])}))
    data = DATASETS["femnist"](tmp_path)
    assert data.writers.tolist() == [1, 0]
    assert data.test_writers.tolist() == [2, 1]


def test_a_fraction_of_femnist(tmp_path: Path) -> None:
    pixels = [[0.0] * 783 + [round(k / 255, 6)] for k in range(40)]
    writers = {"a": (pixels, list(range(40))), "b": (pixels[:30], [0] * 30), "c": (pixels[:1], [1])}
    writers["empty"] = ([], [])
    write(tmp_path / "femnist/train/all.json", leaf(writers))
    write(tmp_path / "femnist/test/all.json", leaf(writers))
    load = DATASETS["femnist"]
    data = load(tmp_path, fraction=0.1)
    assert data.writers.tolist() == [0] * 4 + [1] * 3 + [2]
    assert data.train.inputs[:4, 0, -1, -1].tolist() == data.train.targets[:4].tolist()
    assert len(data.test.inputs) == 71
    assert equal(data, load(tmp_path, fraction=0.1))
    assert not equal(data, load(tmp_path, fraction=0.1, seed=1))
    shutil.rmtree(tmp_path / "femnist")
    for part in ("train", "test"):
        write(tmp_path / "femnist" / part / "all.json", leaf({"_": writers["b"], **writers}))
    more = load(tmp_path, fraction=0.1)
    assert torch.equal(more.train.inputs[more.writers == 1], data.train.inputs[data.writers == 0])
    twins = [more.train.inputs[more.writers == writer] for writer in (0, 2)]
    assert not torch.equal(*twins), "each writer has a draw of its own"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not as LEAF writes it"),
        (b"[1]", "is not as LEAF writes it"),
        (leaf({"a": ([[0.5] * 783], [0])}), "images of a are not 784 values from 0 to 1"),
        (leaf({"a": ([[0.5] * 784, [0.5]], [0, 1])}), "is not as LEAF writes it"),
        (leaf({"a": ([0.5] * 784, [0] * 784)}), "images of a are not 784 values from 0 to 1"),
        (leaf({"a": ([[1.5] * 784], [0])}), "images of a are not 784 values from 0 to 1"),
        (leaf({"a": ([[0.5] * 784], [62])}), "labels of a are not from 0 to 61"),
        (leaf({"a": ([[0.5] * 784], [0, 1])}), "a has 1 images, 2 labels, not 2"),
        (json.dumps({"users": ["a"], "num_samples": [1], "user_data": {}}).encode(), "as LEAF"),
    ],
)
def test_a_file_that_leaf_did_not_write(content: bytes, sentence: str, tmp_path: Path) -> None:
    write_femnist(tmp_path)
    write(tmp_path / "femnist/test/all_data_0.json", content)
    with pytest.raises(ValueError, match=sentence):
        DATASETS["femnist"](tmp_path)


def test_femnist_without_images(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    for path in (tmp_path / "femnist/test").iterdir():
        path.write_bytes(leaf({"a": ([], [])}))
    with pytest.raises(ValueError, match="femnist/test holds no images: make it with LEAF"):
        DATASETS["femnist"](tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("imdb", {"words": 4}, "words 4 leaves no room for a word: use 5 or more"),
        ("imdb", {"length": 0}, "length 0 leaves nothing of a review: use 1 or more"),
        ("femnist", {"fraction": 0.0}, "fraction 0.0 is not above 0 and at most 1"),
        ("femnist", {"fraction": 1.5}, "fraction 1.5 is not above 0 and at most 1"),
    ],
)
def test_impossible_options(name: str, options: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        DATASETS[name](tmp_path, **options)


class TestCache:
    def test_it_is_used_the_second_time(self, name: str, tmp_path: Path, monkeypatch) -> None:
        first = DATASETS[name](tmp_path)
        assert len(list((tmp_path / ".partavg").iterdir())) == 1

        def check(*_: object) -> None:
            raise AssertionError("the files were read again")

        monkeypatch.setattr("partavg.data.source.sha256", check)
        monkeypatch.setattr(Path, "read_bytes", check)
        assert equal(DATASETS[name](tmp_path), first)

    def test_it_is_enough(self, name: str, tmp_path: Path) -> None:
        first = DATASETS[name](tmp_path)
        for path in tmp_path.iterdir():
            if path.name != ".partavg":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert equal(DATASETS[name](tmp_path), first)
        next((tmp_path / ".partavg").iterdir()).write_bytes(b"")
        with pytest.raises(ValueError, match="is damaged and its files are gone: "):
            DATASETS[name](tmp_path)

    @pytest.mark.parametrize("content", [b"", b"garbage", None])
    def test_a_damaged_one_is_made_anew(
        self, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_fashion_mnist(tmp_path)
        admit("fashion_mnist", tmp_path, monkeypatch)
        DATASETS["fashion_mnist"](tmp_path)
        (path,) = (tmp_path / ".partavg").iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if content is None else content)
        check_images(DATASETS["fashion_mnist"](tmp_path), GRAY)
        assert len(path.read_bytes()) == len(whole)

    def test_changed_files_are_read_again(self, tmp_path: Path) -> None:
        write_femnist(tmp_path)
        first = DATASETS["femnist"](tmp_path)
        write(tmp_path / "femnist/test/another.json", leaf({"a": ([[1.0] * 784], [61])}))
        more = DATASETS["femnist"](tmp_path)
        assert len(more.test.inputs) == len(first.test.inputs) + 1
        path = tmp_path / "femnist/test/another.json"
        before = path.stat()
        path.write_bytes(path.read_bytes().replace(b"61", b"60"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert DATASETS["femnist"](tmp_path).test.targets[-1] == 60

    def test_a_root_that_cannot_be_written(self, tmp_path: Path) -> None:
        write_femnist(tmp_path)
        (tmp_path / ".partavg").write_text("a file where the folder would be")
        with pytest.warns(UserWarning, match="cannot keep a decoded copy in") as caught:
            check_images(DATASETS["femnist"](tmp_path), GRAY)
        assert len(caught) == 1
