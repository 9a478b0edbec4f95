"""Fetching from a server on this machine."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partavg.data import DATASETS, SOURCES
from partavg.data.fetch import fetch
from partavg.data.source import Download
from published import admit, known, write_cifar10, write_fashion_mnist
from server import Server, serving

ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def archive(folder: Path, *more: tarfile.TarInfo) -> bytes:
    """The folder's files, and members without content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        for path in sorted((folder / FOLDER).iterdir()):
            members.add(path, f"{FOLDER}/{path.name}")
        for member in more:
            members.addfile(member, io.BytesIO(b"evil" * (member.size // 4)))
    return packed.getvalue()


def offer(content: bytes, server: Server, original: Path, patch: pytest.MonkeyPatch) -> None:
    """Publish an archive of CIFAR-10 on the server; its files are those under `original`."""
    admit("cifar10", original, patch)
    server.files[ARCHIVE] = content
    source = SOURCES["cifar10"]
    sha256 = hashlib.sha256(content).hexdigest()
    url = f"{server.url}/{ARCHIVE}"
    download = replace(source.downloads[0], url=url, size=len(content), sha256=sha256)
    patch.setitem(SOURCES, "cifar10", replace(source, downloads=(download,)))


@pytest.fixture
def content(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A published archive of CIFAR-10."""
    original = tmp_path / "original"
    write_cifar10(original)
    packed = archive(original)
    offer(packed, server, original, monkeypatch)
    return packed


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WHOLE = sorted(
    f"{FOLDER}/{name}" for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
)


def test_fetch_and_load(content: bytes, root: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    assert fetch("cifar10", root, lambda *update: seen.append(update))
    assert names(root) == WHOLE, "the archive is gone"
    assert seen[0] == (ARCHIVE, 0, len(content))
    assert (ARCHIVE, len(content), len(content)) in seen
    assert seen[-1][0] == f"unpacking {ARCHIVE}"
    assert len(DATASETS["cifar10"](root).train.inputs) == 5


def test_what_is_there_is_not_fetched(content: bytes, root: Path, server: Server) -> None:
    fetch("cifar10", root)
    server.requests.clear()
    assert not fetch("cifar10", root)
    assert server.requests == []
    (root / FOLDER / "data_batch_2").write_bytes(b"other")
    with pytest.raises(ValueError, match="data_batch_2 is not the published file"):
        fetch("cifar10", root)
    (root / FOLDER / "data_batch_2").unlink()
    assert fetch("cifar10", root), "an incomplete folder is completed"
    assert names(root) == WHOLE


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_breaks_off_goes_on(
    ranges: bool, content: bytes, root: Path, server: Server
) -> None:
    server.ranges, server.stop_after = ranges, 1000
    with pytest.raises(ValueError, match=f"ended after 1000 of {len(content)} bytes: run the same"):
        fetch("cifar10", root)
    assert names(root) == [f".partavg/{ARCHIVE}.part"]
    server.stop_after = None
    assert fetch("cifar10", root)
    assert server.requests == [(f"/{ARCHIVE}", None), (f"/{ARCHIVE}", "bytes=1000-")]
    assert names(root) == WHOLE


def test_a_whole_part_needs_no_server(content: bytes, root: Path, server: Server) -> None:
    (root / ".partavg").mkdir()
    (root / ".partavg" / f"{ARCHIVE}.part").write_bytes(content)
    assert fetch("cifar10", root)
    assert server.requests == []
    assert names(root) == WHOLE


@pytest.mark.parametrize("part", [b"", b"x" * 1000])
def test_a_wrong_sum(part: bytes, content: bytes, root: Path, server: Server) -> None:
    """From the beginning, and after a part that is of some other file."""
    server.files[ARCHIVE] = content if part else content[:-1] + bytes([content[-1] ^ 1])
    (root / ".partavg").mkdir()
    (root / ".partavg" / f"{ARCHIVE}.part").write_bytes(part)
    found = hashlib.sha256(part + server.files[ARCHIVE][len(part) :]).hexdigest()
    wanted = hashlib.sha256(content).hexdigest()
    with pytest.raises(ValueError, match=f"has the sha256 {found} instead of {wanted}") as caught:
        fetch("cifar10", root)
    assert str(caught.value).endswith(f"get the original {ARCHIVE} and put it in {root}")
    assert names(root) == []


def test_a_file_that_is_too_long(content: bytes, root: Path, server: Server) -> None:
    server.files[ARCHIVE] = content + b"more" * 100_000
    part = root / ".partavg" / f"{ARCHIVE}.part"
    sizes: list[int] = []
    with pytest.raises(ValueError, match="has the sha256"):
        fetch("cifar10", root, lambda *_: sizes.append(part.stat().st_size))
    assert max(sizes) <= len(content) + 1
    assert names(root) == []


def test_a_server_with_a_shorter_file(content: bytes, root: Path, server: Server) -> None:
    server.files[ARCHIVE] = content[:100]
    (root / ".partavg").mkdir()
    (root / ".partavg" / f"{ARCHIVE}.part").write_bytes(content[:1000])
    with pytest.raises(ValueError, match="Range Not Satisfiable"):
        fetch("cifar10", root)
    assert names(root) == [], "the next time it starts anew"


def test_no_such_file(content: bytes, root: Path, server: Server) -> None:
    del server.files[ARCHIVE]
    url = f"{server.url}/{ARCHIVE}"
    with pytest.raises(
        ValueError, match=f"^cannot download {url} .Not Found.: try again"
    ) as caught:
        fetch("cifar10", root)
    assert str(caught.value).endswith(f"or get {ARCHIVE} elsewhere and put it in {root}")
    assert names(root) == []


def test_an_archive_in_the_root_is_used(content: bytes, root: Path, server: Server) -> None:
    (root / ARCHIVE).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{ARCHIVE} has the sha256"):
        fetch("cifar10", root)
    (root / ARCHIVE).write_bytes(content)
    assert fetch("cifar10", root)
    assert server.requests == []
    assert names(root) == sorted([ARCHIVE, *WHOLE]), "it is the user's and stays"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 4 if kind == tarfile.REGTYPE else 0
    return info


def test_nothing_outside_the_folder_is_written(
    tmp_path: Path, root: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tmp_path / "original"
    write_cifar10(original)
    target = tmp_path / "target"
    evil = [
        member("../evil"),
        member(f"{FOLDER}/../../evil"),
        member(f"{FOLDER}/../../../../evil"),
        member(str(tmp_path / "evil")),
        member(f"{FOLDER}/other"),
        member(f"{FOLDER}/batches.meta", tarfile.SYMTYPE, str(target)),
        member(f"{FOLDER}/batches.meta", tarfile.LNKTYPE, "../../original"),
        member(f"{FOLDER}/batches.meta", tarfile.CHRTYPE),
        member(f"{FOLDER}/batches.meta", tarfile.FIFOTYPE),
        member(FOLDER, tarfile.SYMTYPE, str(tmp_path)),
        member(f"{FOLDER}/data_batch_1\n"),
    ]
    before = {*names(tmp_path)}
    offer(archive(original, *evil), server, original, monkeypatch)
    assert fetch("cifar10", root)
    assert names(root) == WHOLE
    assert {*names(tmp_path)} - before == {f"root/{name}" for name in WHOLE}


def test_files_that_are_no_archives(
    tmp_path: Path, root: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tmp_path / "original"
    write_fashion_mnist(original)
    source = known(SOURCES["fashion_mnist"], original)
    downloads = []
    for download in source.downloads:
        file = (original / download.target).read_bytes()
        server.files[download.file] = file
        sha256 = hashlib.sha256(file).hexdigest()
        url = f"{server.url}/{download.file}"
        downloads.append(Download(url, len(file), sha256, download.target))
    source = replace(source, downloads=tuple(downloads))
    monkeypatch.setitem(SOURCES, "fashion_mnist", source)
    own = downloads[0].file
    (root / own).write_bytes(server.files.pop(own))
    assert fetch("fashion_mnist", root)
    assert names(root / "FashionMNIST") == names(original / "FashionMNIST")
    assert (root / own).exists()
    assert len(server.requests) == 3
    (root / downloads[1].target).unlink()
    assert fetch("fashion_mnist", root)
    assert len(server.requests) == 4, "only what is missing"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cifra10", "dataset 'cifra10' is not known: did you mean 'cifar10'?"),
        ("zzz", "dataset 'zzz' is not known: use cifar10, cifar100, "),
        ("fashion_subset", "fashion_subset comes with the package"),
        ("femnist", "femnist has no official download: make it with LEAF, ./preprocess.sh -s niid"),
    ],
)
def test_what_cannot_be_fetched(name: str, sentence: str, root: Path) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        fetch(name, root)
    assert str(caught.value).startswith(sentence)
