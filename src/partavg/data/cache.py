"""Decoded datasets, kept under the root as tensors that are mapped into memory."""

import hashlib
import os
import pickle
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from partavg.data.dataset import Dataset, Samples
from partavg.data.source import Source, Tensors

FOLDER = ".partavg"
_VERSION = 1  # of what the decoders make; another number makes every cache anew

CacheState = Literal["ready", "files there", "not there", "incomplete", "damaged"]


def load(source: Source, root: Path) -> Tensors:
    """A dataset's tensors: from the cache if it is of the files that are there, else from them.

    Files are checked before they are decoded. Where there are none any more, the cache is enough.
    """
    layout, path = source.layout(root), cache_path(source, root)
    fingerprint = layout.fingerprint(root) if layout else None
    stored = _read(path)
    if stored and fingerprint in (None, stored[0]):
        return stored[1]
    if layout is None:
        if path.exists():
            raise ValueError(f"{path} is damaged and its files are gone: {source.remedy}")
        raise ValueError(source.missing(root))
    assert fingerprint is not None
    source.check(root, layout)
    tensors = layout.read(root)
    _write(path, fingerprint, tensors)
    return tensors


def kept(name: str, fingerprint: str, root: Path, make: Callable[[], Tensors]) -> Tensors:
    """What was made before of the same things, as the fingerprint says, else made and kept now."""
    digest = hashlib.sha256(f"{fingerprint}/{_VERSION}".encode()).hexdigest()
    path = root / FOLDER / f"{name}-{digest[:12]}.pt"
    stored = _read(path)
    if stored and stored[0] == fingerprint:
        return stored[1]
    tensors = make()
    _write(path, fingerprint, tensors)
    return tensors


def load_images(source: Source, root: Path, classes: int) -> Dataset:
    """A dataset of images and labels, to train on and to test on."""
    stored = load(source, root)
    train, test = (
        Samples(stored[f"{part}_images"], stored[f"{part}_labels"]) for part in ("train", "test")
    )
    return Dataset(train, test, classes)


def state(source: Source, root: Path) -> CacheState:
    """What `load` would find."""
    layout, path = source.layout(root), cache_path(source, root)
    stored = _read(path)
    if stored and (layout is None or layout.fingerprint(root) == stored[0]):
        return "ready"
    if layout:
        return "files there"
    if path.exists():
        return "damaged"
    return "incomplete" if source.lacks(root) else "not there"


def size(source: Source, root: Path) -> int:
    """Bytes on disk: the files and the cache."""
    found = {path for layout in source.layouts for path in layout.paths(root)}
    inside = (file for path in found for file in ([path] if path.is_file() else path.rglob("*")))
    cache = cache_path(source, root)
    return sum(file.stat().st_size for file in (*inside, cache) if file.is_file())


def cache_path(source: Source, root: Path) -> Path:
    """The file that holds a decoded dataset."""
    digest = hashlib.sha256(f"{source.name}/{_VERSION}".encode()).hexdigest()
    return root / FOLDER / f"{source.name}-{digest[:12]}.pt"


def _read(path: Path) -> tuple[str, Tensors] | None:
    """The fingerprint and the tensors in a file, unless it is missing or damaged."""
    try:
        payload = torch.load(path, weights_only=True, mmap=True)
        return payload["fingerprint"], payload["tensors"]
    except (OSError, RuntimeError, EOFError, LookupError, TypeError, pickle.UnpicklingError):
        return None


def _write(path: Path, fingerprint: str, tensors: Tensors) -> None:
    """Write a file whole or not at all; where that is impossible, warn."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                torch.save({"fingerprint": fingerprint, "tensors": tensors}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # torch turns some failed writes into the latter
        warnings.warn(f"cannot keep a decoded copy in {path.parent}: {error}", stacklevel=3)
