"""Splits in files."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partavg.data.ids import how_many
from partavg.data.ownership import Split


def saved(labels: Any, workers: int, seed: int, *, path: str = "") -> Split:
    """The split in a file that `save` wrote, whatever the seed."""
    try:
        with open(path, "rb") as stored, np.load(stored) as file:
            indices, counts = file["indices"], file["counts"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path!r} is not a saved split: {error}") from None
    whole = all(a.ndim == 1 and a.dtype.kind in "iu" for a in (indices, counts))
    if not whole or counts.sum() != len(indices) or min(indices.min(initial=0), *counts, 1) < 0:
        raise ValueError(f"{path!r} is not a saved split: its numbers do not fit together")
    if len(counts) != workers:
        raise ValueError(
            f"{path!r} splits samples over {len(counts)} workers, not {workers}: use "
            f"training.workers = {len(counts)}, or save a split for {workers}"
        )
    if (most := indices.max(initial=-1)) >= how_many(labels):
        raise ValueError(
            f"{path!r} splits {most + 1} samples or more, and there are {how_many(labels)}: use "
            f"the dataset it was made for"
        )
    return [torch.from_numpy(part) for part in np.split(indices, np.cumsum(counts)[:-1])]


def save(split: Split, path: Path) -> None:
    """Write a split to an .npz file: all indices, worker after worker, and how many each owns."""
    counts = np.array([len(samples) for samples in split])
    with path.open("wb") as file:
        np.savez_compressed(file, indices=torch.cat(split).cpu().numpy(), counts=counts)
