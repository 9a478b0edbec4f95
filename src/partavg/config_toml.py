"""Settings from TOML tables and back; any mistake is a ValueError of one sentence."""

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass, replace
from typing import Any, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from partavg.config import COMPONENTS, Component, Config
from partavg.core.partition import PARTITIONS
from partavg.core.solver import Solver
from partavg.metrics.table import METRICS, is_extra
from partavg.registry import check_name, suggestion
from partavg.sinks import SINKS
from partavg.solvers import SOLVERS

_FINITE = ConfigDict(allow_inf_nan=False)
_STEPS = 400  # of a recipe that gives no budget
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
        component = cls is Component
        sections[name] = _component(values, name, name) if component else section(values, cls, name)
    config = Config(**sections)
    training, averaging = config.training, config.averaging
    PARTITIONS.find(averaging.partition, "averaging.partition")
    for name in config.metrics.extra or ():
        if not is_extra(name):
            raise ValueError(
                f"metrics.extra = {name!r} comes with the package: leave it out, other keys of "
                f"[metrics] say how often it is measured"
            )
        extra = filter(is_extra, METRICS)
        check_name("metrics.extra", name, [*extra], "add it with partavg.register")
    for name in config.metrics.sinks or ():
        SINKS.find(name, "metrics.sinks")
    if config.checkpoints.best:
        METRICS.find(config.checkpoints.best, "checkpoints.best")
    if averaging.parts is None:
        parts = 1 if averaging.partition == "whole" else averaging.interval
        averaging = replace(averaging, parts=parts)
    if training.steps is None and training.epochs is None:
        training = replace(training, steps=_STEPS)
    if training.steps is not None and training.epochs is not None:
        raise ValueError(
            f"training.steps = {training.steps} and training.epochs = {_toml(training.epochs)} "
            f"are two budgets: give one"
        )
    return replace(config, training=training, averaging=averaging)


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


def dump(config: Config) -> str:
    """The TOML text of a config; `parse` reads it back to an equal one."""
    return dump_sections({name: getattr(config, name) for name in get_type_hints(Config)})


def dump_sections(sections: Mapping[str, Any]) -> str:
    """The TOML text of some sections."""
    lines = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{k} = {_toml(v)}" for k, v in _flat(section).items() if v is not None]
        lines.append("")
    return "\n".join(lines)


def _flat(section: Any) -> dict[str, Any]:
    """The keys of a section as a recipe has them."""
    if isinstance(section, Component):
        return {"name": section.name, **section.options}
    return dict(section) if isinstance(section, Mapping) else asdict(section)


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


def section(table: TomlTable, cls: type, name: str) -> Any:
    """A section of settings from a table; the fields of its class say what it may hold."""
    hints = get_type_hints(cls, include_extras=True)
    _check_keys(table, hints, f"{name}.")
    return cls(**{key: _value(hints[key], v, f"{name}.{key}") for key, v in table.items()})


def _component(table: TomlTable, kind: str, path: str) -> Component:
    names, default = COMPONENTS[kind]
    name = _value(str, table.get("name", default), f"{path}.name")
    known = _options(names.find(name, f"{path}.name"), f"{path}.name = {name!r}")
    given = {key: value for key, value in table.items() if key != "name"}
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


def _usable(annotation: type) -> list[str]:
    """The names of the solvers that such an option may be."""
    made = {
        name: make if isinstance(make, type) else get_type_hints(make).get("return", Solver)
        for name, make in SOLVERS.items()
    }
    return [name for name, kind in made.items() if issubclass(kind, annotation)]


def _nested(table: Any, option: inspect.Parameter, path: str) -> Component:
    if not isinstance(table, Mapping):
        raise ValueError(f"{path} = {_toml(table)} is not a section: write [{path}], keys below it")
    _, usual = COMPONENTS["solver"]
    if "name" not in table and option.default not in (option.empty, SOLVERS[usual]()):
        raise ValueError(
            f"{path}.name is not given, and what the solver takes by itself is not {usual}: name it"
        )
    component = _component(table, "solver", path)
    usable = _usable(option.annotation)
    if component.name not in usable:
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
    if is_dataclass(builder):
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
        value = tuple(value)
    try:
        return TypeAdapter(hint, config=_FINITE).validate_python(value, strict=True)
    except PydanticSchemaGenerationError:
        raise ValueError(
            f"{key} is to be a {getattr(hint, '__name__', hint)}, which no recipe can hold: use "
            f"numbers, strings, booleans or tuples of them"
        ) from None
    except ValidationError as error:
        rule = error.errors()[0]["msg"].replace("a valid tuple", 'a list, like ["…"]')
        raise ValueError(f"{key} = {_toml(value)}: {rule[0].lower()}{rule[1:]}") from None


def _check_keys(table: TomlTable, known: Iterable[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {prefix + key!r}: {suggestion(key, known, prefix)}")


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Component):
        return _toml({key: v for key, v in _flat(value).items() if v is not None})
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(k)} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, float):
        return repr(value)
    # JSON's strings are TOML's, but for this one character.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)
