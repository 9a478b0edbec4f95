"""What commands may write over: what they wrote themselves, and what `--force` gives them."""

from pathlib import Path

_PAGE = "· partavg</title>".encode()
"""What the head of every page of ours has, whichever version wrote it."""
_HEAD = 16_384  # bytes in which a page has its title


def check_new(path: Path | None, *, force: bool) -> None:
    """Raise a ValueError if a file is there already; `force` gives it away."""
    if path and path.exists() and not force:
        raise ValueError(f"{path} is there already: name another file, or use --force")


def check_page(path: Path, *, force: bool = False, remedy: str = "move it away") -> None:
    """Raise a ValueError if something else than a page of ours is there."""
    if path.exists() and not force and not is_page(path):
        raise ValueError(f"{path} is no report of partavg, and is not overwritten: {remedy}")


def is_page(path: Path) -> bool:
    """Whether partavg wrote this page, which it may then renew."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _PAGE in file.read(_HEAD)
