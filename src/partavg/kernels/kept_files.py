"""Files that are kept between runs: each is written as a whole or not at all, and checked."""

import hashlib
import os
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

VARIABLE = "PARTAVG_KERNELS"
OFF = "off"


def folder() -> Path | None:
    """Where they are: the folder in the environment, else in the user's cache; None if off."""
    given = os.environ.get(VARIABLE)
    if given:
        return None if given == OFF else Path(given).expanduser()
    return user_cache_path("partavg", appauthor=False, opinion=False) / "kernels"


def read(path: Path) -> bytes:
    """What a file holds; a ValueError if it is damaged."""
    checked, content = path.read_bytes().split(b"\n", 1)
    if hashlib.sha256(content).hexdigest().encode() != checked:
        raise ValueError(f"{path} is damaged")
    return content


def write(path: Path, content: bytes) -> None:
    """Write a file that others may be reading or writing, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checked = hashlib.sha256(content).hexdigest()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="draft", delete=False) as draft:
        try:
            draft.write(f"{checked}\n".encode() + content)
            draft.close()
            Path(draft.name).replace(path)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise
