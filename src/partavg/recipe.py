"""Recipes: TOML files that describe runs, those of the paper's tables among them."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partavg.config import Config
from partavg.config_toml import override_, parse
from partavg.folder import MADE_BY
from partavg.recipes import ROOT
from partavg.recipes import names as names
from partavg.recipes.files import Paper, find, paper, read


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings, and in which of them the schemes to compare differ."""

    name: str
    tables: dict[str, Any]
    schemes: dict[str, dict[str, Any]]
    overrides: tuple[str, ...] = ()
    paper: Paper | None = None

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
    if MADE_BY in tables:
        raise ValueError(
            f"{path} is of a run that was made in Python: run that program again, with resume=True"
        )
    schemes = tables.pop("schemes", {})
    if not (isinstance(schemes, dict) and all(isinstance(v, dict) for v in schemes.values())):
        raise ValueError(f"{path}: schemes are sections: write [schemes.partial], keys below it")
    reported = paper(tables, path)
    tables.pop("paper", None)
    known = path.is_relative_to(ROOT)
    title = path.relative_to(ROOT).with_suffix("").as_posix() if known else path.stem
    return Recipe(title, tables, schemes, tuple(overrides), reported)
