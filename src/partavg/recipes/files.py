"""Recipes as files: which one is meant, and what it says.

Nothing here imports torch or looks at settings; `partavg.recipe` does.
"""

import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partavg.recipes import ROOT, names
from partavg.registry import check_name

_TEXT = "utf-8-sig"  # some editors begin a file with a byte order mark


@dataclass(frozen=True, slots=True)
class Paper:
    """What the paper reports for a recipe: accuracy in %, and its deviation, of each scheme."""

    table: str
    reported: dict[str, tuple[float, float]]
    note: str = ""


RECIPE = "recipe.toml"
"""The recipe of a folder."""


def find(name: str | Path) -> Path:
    """The file of a recipe: any file, that of a folder, or that of a name."""
    path = Path(name)
    if path.is_file() or path.suffix == ".toml":
        return path
    if (path / RECIPE).is_file():
        return path / RECIPE
    if path.is_dir() and str(name) not in names():
        raise ValueError(f"{path} is a folder without a {RECIPE}: `partavg new {path}` writes one")
    check_name("recipe", str(name), names(), "`partavg recipes` lists them, or name a file")
    return ROOT / f"{name}.toml"


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding=_TEXT))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def about(path: Path) -> str:
    """The first sentence of the comment that a file begins with."""
    comment = itertools.takewhile(
        lambda line: line.startswith("#"), path.read_text(encoding=_TEXT).splitlines()
    )
    text = " ".join(line.lstrip("# ") for line in comment)
    return re.split(r"[.:] ", text + " ", maxsplit=1)[0].strip()


def paper(tables: dict[str, Any], path: Path) -> Paper | None:
    """What the tables of a recipe say of the paper, if anything."""
    values = tables.get("paper")
    if not values:
        return None
    try:
        reported = {k: (float(v[0]), float(v[1])) for k, v in values.items() if type(v) is list}
        return Paper(str(values["table"]), reported, values.get("note", ""))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        raise ValueError(
            f"{path}: [paper] holds the table, and for each scheme the accuracy in % and its "
            f"deviation: partial = [88.17, 0.1]"
        ) from None
