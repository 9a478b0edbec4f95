"""Settings from TOML tables and back; any mistake is a ValueError of one sentence."""

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from partavg.config import COMPONENTS, Averaging, Component, Config
from partavg.core.cuts import PARTITIONS
from partavg.core.solver import Solver
from partavg.metrics.table import METRICS
from partavg.registry import Names, suggestion, table
from partavg.solvers import SOLVERS

_FINITE = ConfigDict(allow_inf_nan=False)
_STEPS = 400  # of a recipe that gives no budget
_LISTS = {"metrics.extra": "metric", "metrics.sinks": "sink"}
"""Keys that hold a list of components, and the kind of these."""
TomlTable = Mapping[str, Any]


def parse(table: TomlTable) -> Config:
    """Turn nested tables into a Config; any mistake is a ValueError of one sentence."""
    hints = get_type_hints(Config)
    _check_keys(table, hints, "")
    sections: dict[str, Any] = {}
    for name, cls in hints.items():
        values = table.get(name, {})
        if not isinstance(values, Mapping):
            raise ValueError(f"{name} = {values!r} is not a section: write [{name}], keys below it")
        if cls is Component:
            sections[name] = _component(values, *COMPONENTS[name], name)
        else:
            sections[name] = section(values, cls, name)
    config = Config(**sections)
    training, averaging = config.training, config.averaging
    if isinstance(averaging.partition, str):
        PARTITIONS.find(averaging.partition, "averaging.partition")
    METRICS.asked(config.metrics.extra or ())
    if averaging.parts is None:
        averaging = replace(averaging, parts=_parts(averaging))
    if training.steps is None and training.epochs is None:
        training = replace(training, steps=_STEPS)
    if training.steps is not None and training.epochs is not None:
        raise ValueError(
            f"training.steps = {training.steps} and training.epochs = {toml(training.epochs)} "
            f"are two budgets: give one"
        )
    return replace(config, training=training, averaging=averaging)


def _parts(averaging: Averaging) -> int:
    """How many parts there are where nobody says so."""
    if averaging.offsets or not isinstance(averaging.partition, str):
        return len(averaging.offsets or averaging.partition)
    return 1 if averaging.partition == "whole" else averaging.interval


def override_(table: dict[str, Any], override: str) -> None:
    """Change one setting of nested tables, given as `section.key=value`."""
    path, equals, text = override.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise ValueError(f"override {override!r} is not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    values = table.setdefault(section, {})
    while "." in key and isinstance(values, dict):
        inner, _, key = key.partition(".")
        values = values.setdefault(inner, {})
    if not isinstance(values, dict):
        return  # parse will say so
    if section in COMPONENTS and key == "name" and values.get("name") != value:
        values.clear()  # another component has other options
    if section == "training":
        values.pop({"steps": "epochs", "epochs": "steps"}.get(key), None)  # one budget, not two
    values[key] = value


def assignment(key: str, value: Any) -> str:
    """An override that gives a key a value of Python; a string may be any text of TOML.

    >>> assignment("averaging.shuffle", True), assignment("averaging.local", ("head.*",))
    ('averaging.shuffle=true', 'averaging.local=["head.*"]')
    """
    return f"{key}={value if isinstance(value, str) else toml(value)}"


def dump(config: Config) -> str:
    """The TOML text of a config; `parse` reads it back to an equal one."""
    return dump_sections({name: getattr(config, name) for name in get_type_hints(Config)})


def to_tables(config: Config) -> dict[str, Any]:
    """The settings as a TOML file holds them."""
    return tomllib.loads(dump(config))


def dump_sections(sections: Mapping[str, Any]) -> str:
    """The TOML text of some sections."""
    lines = []
    for name, section in sections.items():
        keys = [f"{_key(k)} = {toml(v)}" for k, v in _flat(section).items() if v is not None]
        if keys:
            lines += [f"[{name}]", *keys, ""]
    return "\n".join(lines)


def _flat(section: Any) -> dict[str, Any]:
    """The keys of a section as a recipe has them."""
    if isinstance(section, Component):
        return {"name": section.name, **section.options}
    if isinstance(section, Mapping):
        return dict(section)
    return {field.name: getattr(section, field.name) for field in fields(section)}


def differences(one: Config, other: Config) -> list[str]:
    """The keys in which two configs differ."""
    ours, theirs = settings(one), settings(other)
    return [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]


def settings(config: Config) -> dict[str, Any]:
    """All keys of a config, `section.key`, as TOML gives them back."""
    return flat_keys(dump(config))


def flat_keys(text: str) -> dict[str, Any]:
    """All keys of a TOML text that consists of sections, `section.key`."""
    table = tomllib.loads(text)
    return {f"{section}.{key}": v for section, values in table.items() for key, v in values.items()}


def section(values: TomlTable, cls: type, name: str) -> Any:
    """A section of settings from a table; the fields of its class say what it may hold."""
    hints = get_type_hints(cls, include_extras=True)
    _check_keys(values, hints, f"{name}.")
    return cls(**{key: _setting(hints[key], v, f"{name}.{key}") for key, v in values.items()})


def _setting(hint: Any, value: Any, key: str) -> Any:
    return components(value, table(_LISTS[key]), key) if key in _LISTS else _value(hint, value, key)


def components(entries: Any, names: Names[Any], key: str) -> tuple[Component, ...]:
    """Components from a list: each is a name, or a table of a name and options.

    >>> from partavg.solvers import SOLVERS
    >>> one, other = components(["scaffold", {"name": "fedprox", "mu": 0.1}], SOLVERS, "mine")
    >>> one.name, other.options["mu"]
    ('scaffold', 0.1)
    """
    tables = []
    for entry in _value(tuple[Any, ...], entries, key):
        values = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(values, Mapping):
            hint = 'input should be a name, or a table like {name = "…"}'
            raise ValueError(f"{key} = {toml(entries)}: {hint}")
        if "name" not in values:
            raise ValueError(f"{key} has the entry {toml(entry)} without a name: give it one")
        tables.append(values)
    return tuple(_entry(values, names, key, f"{key}.{values['name']}") for values in tables)


def _entry(values: TomlTable, names: Names[Any], key: str, path: str) -> Component:
    """A component of a list, with the options that all of its kind have."""
    common = {k: _value(str, values[k], f"{path}.{k}") for k in names.common if k in values}
    own = {k: value for k, value in values.items() if k not in names.common}
    found = _named(own, names, key, path)
    return Component(found.name, {**common, **found.options})


def _component(values: TomlTable, names: Names[Any], default: str, path: str) -> Component:
    return _named({"name": default, **values}, names, f"{path}.name", path)


def _named(values: TomlTable, names: Names[Any], key: str, path: str) -> Component:
    """A component from a table: its name, given at `key`, and its options, below `path`."""
    name = _value(str, values["name"], key)
    made_of: Any = names.code(names.find(name, key))
    known = _options(made_of, f"{key} = {name!r}")
    given = {key: value for key, value in values.items() if key != "name"}
    _check_keys(given, {"name": None, **known}, f"{path}.")
    options = {
        key: _nested(given.get(key, {}), p, f"{path}.{key}")
        if _is_solver(p.annotation)
        else _value(p.annotation, _given(given, p, f"{path}.{key}"), f"{path}.{key}")
        for key, p in known.items()
    }
    return Component(name, options)


def _is_solver(annotation: Any) -> bool:
    """Whether an option is a solver itself: any, or one of a class."""
    return isinstance(annotation, type) and issubclass(annotation, Solver)


def _fits(name: str, annotation: type) -> bool:
    """Whether the solvers of a name can be such an option."""
    make = SOLVERS.find(name)
    made = make if isinstance(make, type) else get_type_hints(make).get("return", Solver)
    return issubclass(made, annotation) if isinstance(made, type) else annotation is Solver


def _nested(table: Any, option: inspect.Parameter, path: str) -> Component:
    if not isinstance(table, Mapping):
        raise ValueError(f"{path} = {toml(table)} is not a section: write [{path}], keys below it")
    _, usual = COMPONENTS["solver"]
    if "name" not in table and option.default not in (option.empty, SOLVERS[usual]()):
        raise ValueError(
            f"{path}.name is not given, and what the solver takes by itself is not {usual}: name it"
        )
    component = _component(table, *COMPONENTS["solver"], path)
    if not _fits(component.name, option.annotation):
        usable = [name for name in SOLVERS if _fits(name, option.annotation)]
        raise ValueError(
            f"{path}.name = {component.name!r} cannot be used there: use {' or '.join(usable)}"
        )
    return component


def _options(builder: Callable[..., Any], what: str) -> dict[str, inspect.Parameter]:
    """A component's options: a dataclass's fields, a function's keyword-only arguments."""
    try:
        parameters = inspect.signature(builder, eval_str=True).parameters
    except Exception as error:
        raise ValueError(f"{what} has options that cannot be read: {error}") from None
    if isinstance(builder, type) and is_dataclass(builder):
        found = {f.name: _with_default(parameters[f.name], f) for f in fields(builder) if f.init}
    else:
        found = {k: p for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    if "name" in found:
        raise ValueError(f"{what} has an option 'name', which is its own name: call it otherwise")
    return {key: _annotated(option, what) for key, option in found.items()}


def _annotated(option: inspect.Parameter, what: str) -> inspect.Parameter:
    """An option with its type: that of its default, if it says no other."""
    if option.annotation is not option.empty:
        return option
    kind = type(option.default)
    if kind not in (bool, int, float, str):
        raise ValueError(f"{what} has an option {option.name!r} without a type: annotate it")
    return option.replace(annotation=kind)


def _given(table: TomlTable, option: inspect.Parameter, key: str) -> Any:
    """The value of an option, or its default."""
    value = table.get(option.name, option.default)
    if value is option.empty:
        raise ValueError(f"{key} is missing, and has no default: give it")
    return value


def _with_default(parameter: inspect.Parameter, field: Field[Any]) -> inspect.Parameter:
    """A parameter of a dataclass, with what its factory makes as the default."""
    if field.default_factory is MISSING:
        return parameter
    return parameter.replace(default=field.default_factory())


def _value(hint: Any, value: Any, key: str) -> Any:
    if isinstance(value, list) and get_origin(hint) is not list:
        value = tuple(tuple(one) if isinstance(one, list) else one for one in value)
    try:
        return TypeAdapter(hint, config=_FINITE).validate_python(value, strict=True)
    except PydanticSchemaGenerationError:
        raise ValueError(
            f"{key} is to be a {getattr(hint, '__name__', hint)}, which no recipe can hold: use "
            f"numbers, strings, booleans or tuples of them"
        ) from None
    except ValidationError as error:
        rule = error.errors()[0]["msg"].replace("a valid tuple", 'a list, like ["…"]')
        raise ValueError(f"{key} = {toml(value)}: {rule[0].lower()}{rule[1:]}") from None


def _check_keys(table: TomlTable, known: Iterable[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {prefix + key!r}: {suggestion(key, known, prefix)}")


def toml(value: Any) -> str:
    """A value as a TOML file has it."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_listed, value))}]"
    if isinstance(value, Component):
        return toml({key: v for key, v in _flat(value).items() if v is not None})
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(k)} = {toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, float):
        return repr(value)
    # JSON's strings are TOML's, but for this one character.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def _listed(value: Any) -> str:
    """An entry of a list: a component without options is its name."""
    bare = isinstance(value, Component) and all(v is None for v in value.options.values())
    return toml(value.name if bare else value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)
