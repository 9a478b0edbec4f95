"""Recipes that come with the package."""

import re
from pathlib import Path

ROOT = Path(__file__).parent
"""Where they are."""

DEMO = "demo"


def names() -> list[str]:
    """Their names, in the order of the paper's tables."""
    found = (path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.toml"))
    return sorted(found, key=_numbers_by_value)


def _numbers_by_value(name: str) -> list[tuple[float, str]]:
    pieces = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(piece), "") if piece[:1].isdigit() else (-1.0, piece) for piece in pieces]
