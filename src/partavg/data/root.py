"""Placeholder until the data branch is merged."""

from pathlib import Path


def root(given: Path | None) -> Path:
    """Where datasets are."""
    return given or Path("data")
