"""Checkpoints: written whole or not at all, named by their checksum, the last two kept.

A checkpoint may need files beside it, of what clients keep, with their checksums in their names,
too: it lists them under "beside", is whole only with them, and they are kept as long as it is.
"""

import errno
import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{64})\.pt")
_BESIDE = re.compile(r"clients-[0-9a-f]{64}\.pt")
_KEEP = 2


def save(folder: Path, step: int, payload: dict[str, Any], *, private: bool = False) -> Path:
    """Write a checkpoint atomically, keep it and the one before it, remove all others.

    The file's name carries the checksum of its content, so one rename publishes both. Others may
    be of later steps, too: damaged ones, left by a run that had to go back. A `private` one is for
    nobody else to read.
    """
    draft = folder / "draft.tmp"
    _write(draft, payload, f"no checkpoint could be written to {folder}", private=private)
    target = folder / f"step-{step:09d}-{_digest(draft)}.pt"
    draft.replace(target)
    _sync_folder(folder)
    found = _newest_first(folder)
    for path in found[: found.index(target)] + found[found.index(target) + _KEEP :]:
        path.unlink()
    _clear(folder)
    return target


def save_clients(folder: Path, payload: dict[str, Any]) -> str:
    """Write a file of what clients keep, which the next checkpoint may need; its name."""
    draft = folder / "draft.tmp"
    _write(draft, payload, f"no checkpoint could be written to {folder}")
    target = folder / f"clients-{_digest(draft)}.pt"
    draft.replace(target)
    return target.name


def save_model(path: Path, state: dict[str, Any]) -> None:
    """Write the state dict of a model whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    _write(draft, state, f"no model could be written to {path}")
    draft.replace(path)


def _write(path: Path, payload: dict[str, Any], failed: str, *, private: bool = False) -> None:
    """Write a file that is on disk then; an OSError says what `failed`, and leaves nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            if private:
                path.chmod(0o600)
            torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):
            raise  # not torch's way to say that a file could not be written
        code = getattr(error, "errno", None) or errno.ENOSPC
        raise OSError(code, f"{failed}: {os.strerror(code)}: make room") from error


def keep(folder: Path, count: int) -> None:
    """Remove all but the newest ones."""
    for path in _newest_first(folder)[count:]:
        path.unlink()
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove the files beside checkpoints that none of them needs."""
    beside = [path for path in folder.glob("clients-*.pt") if _BESIDE.fullmatch(path.name)]
    if beside:
        needed = {name for path in _newest_first(folder) for name in _needed(path)}
        for path in beside:
            if path.name not in needed:
                path.unlink()


def _needed(path: Path) -> list[str]:
    """The files that a checkpoint needs beside it; none of one that is damaged."""
    try:
        found = torch.load(path, weights_only=True, mmap=True).get("beside", [])
    except Exception:  # whatever torch says of a damaged file
        return []
    return [name for name in found if _BESIDE.fullmatch(name)]


def load(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, on the CPU; a damaged one is passed over with a warning.

    The tensors stay in the file until they are used.
    """
    found = _newest_first(folder)
    whole = next((path for path in found if _is_whole(path)), None)
    for path in found[: found.index(whole) if whole else None]:
        instead = f"using that of step {_step(whole)}" if whole else "there is none to go on from"
        warnings.warn(
            f"checkpoint {path} is damaged (its checksum differs): {instead}", stacklevel=2
        )
    if whole is None:
        return None
    payload: dict[str, Any] = torch.load(whole, weights_only=True, mmap=True)
    return payload


def latest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, without reading it."""
    found = _newest_first(folder)
    return _step(found[0]) if found else None


def _step(path: Path) -> int:
    return int(path.name[5:14])


def _is_whole(path: Path) -> bool:
    if path.name != f"step-{_step(path):09d}-{_digest(path)}.pt":
        return False
    beside = [path.with_name(name) for name in _needed(path)]
    return all(one.exists() and one.name.endswith(f"-{_digest(one)}.pt") for one in beside)


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, reverse=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can open folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
