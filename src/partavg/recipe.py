"""Recipes: TOML files that describe runs, those of the paper's tables among them."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from partavg.config import Config
from partavg.config_toml import override_, parse
from partavg.folder import CONFIG, MADE_BY
from partavg.kept_code import restored
from partavg.named import anchored, own_names
from partavg.own_code import look_again
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
        for override in _names_first(self.overrides):
            override_(tables, override)
        tables = anchored(tables, Path.cwd())
        for code in own_names(tables).values():
            look_again(code)
        return parse(tables)


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe: a file, a folder with a recipe.toml, or the name of one of the package.

    Python files that it names are relative to it, those of overrides to the current folder.
    """
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
    here = path.parent
    tables = restored(here, tables) if path.name == CONFIG else anchored(tables, here)
    schemes = {scheme: anchored(values, here) for scheme, values in schemes.items()}
    return Recipe(_title(Path(name), path), tables, schemes, tuple(overrides), reported)


def _title(given: Path, path: Path) -> str:
    """What a recipe is called: as its file, or as the folder that was given."""
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).with_suffix("").as_posix()
    return given.resolve().name if given.is_dir() else path.stem


def _names_first(overrides: Sequence[str]) -> list[str]:
    """Overrides in an order in which none undoes another: a name takes its old options away."""

    def rank(override: str) -> float:
        key = key_of(override)
        return key.count(".") if key.endswith(".name") else inf

    if {"training.steps", "training.epochs"} <= set(map(key_of, overrides)):
        raise ValueError("training.steps and training.epochs are two budgets: set one of them")
    return sorted(overrides, key=rank)


def key_of(override: str) -> str:
    """The setting that an override changes."""
    return override.partition("=")[0].strip()
