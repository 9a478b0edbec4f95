"""Where settings hold names: of components, the partition, metrics and sinks."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from partavg import own_code
from partavg.config import COMPONENTS

Tables = Mapping[str, Any]
"""Settings as a TOML file holds them."""

_KEYS = {"averaging": {"partition": "partition"}, "metrics": {"extra": "metric", "sinks": "sink"}}
"""Keys beside `name` that hold names, and of which kind."""


def names_in(tables: Tables) -> dict[str, tuple[str, str]]:
    """The kind and the name at each key that holds one.

    >>> names_in({"model": {"name": "mlp"}, "metrics": {"sinks": ["tensorboard"]}})
    {'model.name': ('model', 'mlp'), 'metrics.sinks.0': ('sink', 'tensorboard')}
    """
    found: dict[str, tuple[str, str]] = {}

    def note(key: str, kind: str, name: str) -> str:
        found[key] = kind, name
        return name

    _changed(tables, note)
    return found


def own_names(tables: Tables) -> dict[str, str]:
    """The keys whose names stand for Python of the user's own."""
    return {key: name for key, (_, name) in names_in(tables).items() if own_code.is_own(name)}


def renamed(tables: Tables, change: Callable[[str], str]) -> dict[str, Any]:
    """The same settings with other names."""
    return _changed(tables, lambda key, kind, name: change(name))


def anchored(tables: Tables, folder: Path) -> dict[str, Any]:
    """The same settings with the whole paths of files, which are relative to a folder."""
    return renamed(tables, lambda name: own_code.anchored(name, folder))


_Change = Callable[[str, str, str], str]


def _changed(tables: Tables, change: _Change) -> dict[str, Any]:
    return dict(_sections(tables, change))


def _sections(tables: Tables, change: _Change) -> Iterator[tuple[str, Any]]:
    for section, values in tables.items():
        if not isinstance(values, Mapping):
            yield section, values  # parse will say so
        elif section in COMPONENTS:
            yield section, _component(values, section, section, change)
        else:
            kinds = _KEYS.get(section, {})
            yield (
                section,
                {
                    key: _one_or_several(value, f"{section}.{key}", kinds[key], change)
                    if key in kinds
                    else value
                    for key, value in values.items()
                },
            )


def _component(values: Tables, kind: str, path: str, change: _Change) -> dict[str, Any]:
    """A component, and the solvers among its options."""
    return {
        key: _component(value, "solver", f"{path}.{key}", change)
        if isinstance(value, Mapping)
        else change(f"{path}.{key}", kind, value)
        if key == "name" and isinstance(value, str)
        else value
        for key, value in values.items()
    }


def _one_or_several(value: Any, key: str, kind: str, change: _Change) -> Any:
    if isinstance(value, str):
        return change(key, kind, value)
    if isinstance(value, Mapping):
        return _component(value, kind, key, change)
    if not isinstance(value, list) or kind == "partition":
        return value  # patterns of names, or parse will say so
    return [_one_or_several(one, f"{key}.{place}", kind, change) for place, one in enumerate(value)]
