"""Recipes: TOML files that describe runs, those of the paper's tables among them."""

import itertools
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partavg.config import Config
from partavg.recipes import ROOT
from partavg.recipes import names as names
from partavg.registry import check_name
from partavg.tables import override_, parse, read


@dataclass(frozen=True, slots=True)
class Paper:
    """What the paper reports for a recipe: accuracy in %, and its deviation, of each scheme."""

    table: str
    reported: dict[str, tuple[float, float]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings, and in which of them the schemes to compare differ."""

    name: str
    tables: dict[str, Any]
    schemes: dict[str, dict[str, Any]]
    overrides: tuple[str, ...] = ()
    paper: Paper | None = None
    about: str = ""
    """The first sentence of the comment that the file begins with."""

    def config(self, scheme: str | None = None) -> Config:
        """The settings of a scheme; those of all schemes if it has none of its own."""
        tables = deepcopy(self.tables)
        for section, values in self.schemes.get(scheme or "", {}).items():
            if not isinstance(values, Mapping):
                raise ValueError(f"schemes.{scheme}.{section} is not a section: write section.key")
            own = tables.setdefault(section, {})
            if values.get("name", own.get("name")) != own.get("name"):
                own.clear()  # another component has other options
            own.update(deepcopy(values))
        for override in self.overrides:
            override_(tables, override)
        return parse(tables)


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe: a file, or the name of one that comes with the package."""
    path = find(name)
    tables = read(path)
    schemes = tables.pop("schemes", {})
    if not (isinstance(schemes, dict) and all(isinstance(v, dict) for v in schemes.values())):
        raise ValueError(f"{path}: schemes are sections: write [schemes.partial], keys below it")
    paper = tables.pop("paper", None)
    known = path.is_relative_to(ROOT)
    title = path.relative_to(ROOT).with_suffix("").as_posix() if known else path.stem
    reported = _paper(paper, path) if paper else None
    return Recipe(title, tables, schemes, tuple(overrides), reported, _about(path))


def find(name: str | Path) -> Path:
    """The file of a recipe."""
    path = Path(name)
    if path.is_file() or path.suffix == ".toml":
        return path
    check_name("recipe", str(name), names(), "`partavg recipes` lists them, or name a file")
    return ROOT / f"{name}.toml"


def _about(path: Path) -> str:
    comment = itertools.takewhile(
        lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()
    )
    text = " ".join(line.lstrip("# ") for line in comment)
    return re.split(r"[.:] ", text + " ", maxsplit=1)[0].strip()


def _paper(values: Any, path: Path) -> Paper:
    try:
        reported = {k: (float(v[0]), float(v[1])) for k, v in values.items() if type(v) is list}
        return Paper(str(values["table"]), reported, values.get("note", ""))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        raise ValueError(
            f"{path}: [paper] holds the table, and for each scheme the accuracy in % and its "
            f"deviation: partial = [88.17, 0.1]"
        ) from None
