"""A published dataset: how its files lie under a root, and where they can be had."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

Tensors = dict[str, Tensor]
"""What a dataset's files hold, by name."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Files under a root: patterns, each with its sha256 where that is fixed, and their reader."""

    files: dict[str, str | None]
    read: Callable[[Path], Tensors]

    def lacks(self, root: Path) -> list[str]:
        """The patterns that nothing under the root matches."""
        return [pattern for pattern in self.files if not any(root.glob(pattern))]

    def paths(self, root: Path) -> list[Path]:
        """The files and folders under the root."""
        return sorted(path for pattern in self.files for path in root.glob(pattern))

    def fingerprint(self, root: Path) -> str:
        """A text that changes when the files do, without reading them."""
        stats = {path.relative_to(root).as_posix(): path.stat() for path in self.paths(root)}
        return json.dumps({name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()})


@dataclass(frozen=True, slots=True)
class Download:
    """A file at an official address, and what it becomes under the root.

    Of an archive only the members are taken whose whole names match the pattern `members`.
    """

    url: str
    size: int
    sha256: str
    target: str
    members: str | None = None

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset as it was published; the first layout that is complete is read."""

    name: str
    about: str
    layouts: tuple[FileLayout, ...]
    by_hand: str
    downloads: tuple[Download, ...] = ()

    @property
    def remedy(self) -> str:
        """What to do when files are missing."""
        fetch = f'run "partavg data fetch {self.name}", or ' if self.downloads else ""
        return fetch + self.by_hand

    def layout(self, root: Path) -> FileLayout | None:
        """The layout that is complete under the root."""
        return next((layout for layout in self.layouts if not layout.lacks(root)), None)

    def lacks(self, root: Path) -> str | None:
        """The first file that an incomplete layout lacks, if some of its files are there."""
        for layout in self.layouts:
            lacks = layout.lacks(root)
            if 0 < len(lacks) < len(layout.files):
                return lacks[0]
        return None

    def missing(self, root: Path) -> str:
        """Why no layout is complete, and what to do."""
        lacks = self.lacks(root)
        why = f"{self.name} in {root} lacks {lacks}" if lacks else f"{self.name} is not in {root}"
        return f"{why}: {self.remedy}"

    def check(self, root: Path, layout: FileLayout) -> None:
        """Raise a ValueError if a file is not the published one."""
        for name, known in layout.files.items():
            found = known and sha256(root / name)
            if found != known:
                again = f'run "partavg data fetch {self.name}"' if self.downloads else "get it anew"
                raise ValueError(
                    f"{root / name} is not the published file, its sha256 is {found} instead of "
                    f"{known}: delete it and {again}"
                )


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
