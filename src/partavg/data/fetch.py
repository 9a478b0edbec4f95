"""Getting published datasets from their official addresses."""

import http.client
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from partavg.data import DATASETS, SOURCES
from partavg.data.cache import FOLDER
from partavg.data.source import Download, Source, sha256
from partavg.registry import suggestion

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done and the bytes in all."""

_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


def find_source(name: str) -> Source:
    """The source of that name."""
    if name in SOURCES:
        return SOURCES[name]
    if name in DATASETS:
        raise ValueError(f"{name} comes with the package: use it without fetching it")
    raise ValueError(f"dataset {name!r} is not known: {suggestion(name, SOURCES)}")


def fetch(name: str, root: Path, progress: OnProgress = lambda *_: None) -> bool:
    """Get a dataset's files into their places; False if they were there, and are as published.

    A download that ends early goes on from there the next time. A file that lies in the root
    under its own name is used instead of a download.
    """
    source = find_source(name)
    if layout := source.layout(root):
        source.check(root, layout)
        return False
    if not source.downloads:
        raise ValueError(f"{name} has no official download: {source.by_hand} in {root}")
    for download in source.downloads:
        if download.members is None and (root / download.target).exists():
            continue
        own = root / download.file
        file = own if own.exists() else _download(download, root, progress)
        _check(download, file, root)
        if download.members is not None:
            _unpack(download, file, root, progress)
        else:
            _place(file, root / download.target, keep=file == own)
        if file != own:
            file.unlink(missing_ok=True)
    layout = source.layout(root)
    if layout is None:
        raise ValueError(source.missing(root))
    source.check(root, layout)
    return True


def part_path(download: Download, root: Path) -> Path:
    """Where a download lies until it is whole."""
    return root / FOLDER / f"{download.file}.part"


def _download(download: Download, root: Path, progress: OnProgress) -> Path:
    """Download what is still missing of a file."""
    part = part_path(download, root)
    part.parent.mkdir(parents=True, exist_ok=True)
    done = part.stat().st_size if part.exists() else 0
    if done < download.size:
        try:
            _receive(download, part, done, progress)
        except (http.client.HTTPException, OSError) as error:  # URLError is an OSError
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    part.unlink()  # of some other file
            raise ValueError(
                f"cannot download {download.url} ({getattr(error, 'reason', error)}): try again "
                f"later, or get {download.file} elsewhere and put it in {root}"
            ) from None
    if part.stat().st_size < download.size:
        raise ValueError(
            f"{download.url} ended after {part.stat().st_size} of {download.size} bytes: "
            f"run the same command again to get the rest"
        )
    return part


def _receive(download: Download, part: Path, done: int, progress: OnProgress) -> None:
    request = urllib.request.Request(download.url)
    if done:
        request.add_header("Range", f"bytes={done}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            done = 0  # the server sends the whole file
        with part.open("ab" if done else "wb") as file:
            progress(download.file, done, download.size)
            # No more than a byte too many: a wrong file must not fill the disk.
            while block := answer.read1(min(_BLOCK, download.size + 1 - done)):
                file.write(block)
                done += len(block)
                progress(download.file, min(done, download.size), download.size)


def _check(download: Download, file: Path, root: Path) -> None:
    """Raise a ValueError if a file is not the published one; remove it if it was downloaded."""
    found = sha256(file)
    if found == download.sha256:
        return
    if file == part_path(download, root):
        file.unlink()
        where = f"what came from {download.url}"
    else:
        where = str(file)
    raise ValueError(
        f"{where} has the sha256 {found} instead of {download.sha256}: get the original "
        f"{download.file} and put it in {root}"
    )


def _unpack(download: Download, archive: Path, root: Path, progress: OnProgress) -> None:
    """Take an archive's files of known names, and put them in their place together."""
    assert download.members is not None
    (root / FOLDER).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / FOLDER) as folder:
        with archive.open("rb") as packed, tarfile.open(fileobj=packed) as members:
            for member in members:
                # What the pattern admits has no "..", and no links or devices are taken.
                if member.isreg() and re.fullmatch(download.members, member.name):
                    content = members.extractfile(member)
                    assert content is not None
                    path = Path(folder) / member.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as file:
                        shutil.copyfileobj(content, file)
                progress(f"unpacking {download.file}", packed.tell(), download.size)
        _move(Path(folder) / download.target, root / download.target)


def _move(source: Path, target: Path) -> None:
    """Rename a folder; where there is one already, rename its files one by one."""
    if not target.exists():
        source.rename(target)
        return
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def _place(file: Path, target: Path, *, keep: bool) -> None:
    """Put a file where it belongs, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if keep:
        draft = target.with_name(f"{target.name}.tmp")
        try:
            shutil.copyfile(file, draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    else:
        file.replace(target)
