"""Settings: nested tables into frozen dataclasses, checked before any work starts."""

import difflib
import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import ConfigDict, TypeAdapter, ValidationError

from partavg.backends.simulate import Buffers, Weights
from partavg.core.participation import Redistribution
from partavg.core.partition import PARTITIONS
from partavg.core.rates import RATES
from partavg.data import DATASETS
from partavg.data.images import Normalize
from partavg.data.split import SPLITS
from partavg.engines.choose import EngineName
from partavg.engines.fused.precision import Precision
from partavg.models import MODELS
from partavg.solvers import SOLVERS

_FINITE = ConfigDict(allow_inf_nan=False)
_STEPS = 400  # of a recipe that gives no budget
Table = Mapping[str, Any]
LocalAccuracy = Literal["best", "mean", "first", "all"]


@dataclass(frozen=True, slots=True)
class Component:
    """A dataset, split, model, solver or learning rate: its name and its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Training:
    """Who trains, on how much, for how long."""

    workers: Annotated[int, Ge(1)] = 64
    batch: Annotated[int, Ge(1)] = 16
    steps: Annotated[int, Ge(1)] | None = None
    epochs: Annotated[float, Gt(0)] | None = None
    lr: Annotated[float, Gt(0)] = 0.05
    seed: Annotated[int, Ge(0)] = 0
    scale: Annotated[float, Gt(0), Le(1)] = 1.0


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What is done to images before a model sees them; crops and flips only in training."""

    normalize: Normalize = "channel"
    crop: Annotated[int, Ge(0)] = 0
    flip: bool = False


@dataclass(frozen=True, slots=True)
class ParticipationOptions:
    """How many workers are active at a time, and how they change."""

    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    every: Annotated[int, Ge(0)] = 0
    redistribution: Redistribution = "permute"


@dataclass(frozen=True, slots=True)
class Averaging:
    """What is averaged and when; as many parts as the interval is long unless `parts` is given."""

    interval: Annotated[int, Ge(1)] = 10
    parts: Annotated[int, Ge(1)] | None = None
    partition: str = "channel"
    weights: Weights = "uniform"
    buffers: Buffers = "part"


@dataclass(frozen=True, slots=True)
class Execution:
    """How gradients are computed; `chunk` workers in one pass, 0 to choose."""

    name: EngineName = "auto"
    chunk: Annotated[int, Ge(0)] = 0
    precision: Precision = "auto"
    deterministic: bool = False
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What is measured beside the training loss, and how often; what costs is off by default."""

    evaluate_every: Annotated[int, Ge(0)] = 50
    local_accuracy: tuple[LocalAccuracy, ...] = ()
    discrepancy_every: Annotated[int, Ge(0)] = 0
    discrepancy_parts: bool = False
    round_losses_every: Annotated[int, Ge(0)] = 0
    timings: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Steps between checkpoints; 0 saves only at the start and the end."""

    every: Annotated[int, Ge(0)] = 100


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that decides a run."""

    data: Component
    split: Component
    model: Component
    solver: Component
    lr_schedule: Component
    training: Training = Training()
    images: ImageOptions = ImageOptions()
    participation: ParticipationOptions = ParticipationOptions()
    averaging: Averaging = Averaging()
    engine: Execution = Execution()
    metrics: Metrics = Metrics()
    checkpoints: Checkpoints = Checkpoints()


COMPONENTS: dict[str, tuple[Mapping[str, Callable[..., Any]], str]] = {
    "data": (DATASETS, "fashion_subset"),
    "split": (SPLITS, "iid"),
    "model": (MODELS, "mlp"),
    "solver": (SOLVERS, "sgd"),
    "lr_schedule": (RATES, "constant"),
}
"""Where the components of each kind are listed, and the one taken when a recipe names none."""


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def parse(table: Table) -> Config:
    """Turn nested tables into a Config; any mistake is a ValueError of one sentence."""
    hints = get_type_hints(Config)
    _check_keys(table, hints, "")
    sections: dict[str, Any] = {}
    for name, cls in hints.items():
        values = table.get(name, {})
        if not isinstance(values, Mapping):
            raise ValueError(f"{name} = {values!r} is not a section: write [{name}], keys below it")
        component = cls is Component
        sections[name] = _component(values, name) if component else _section(values, cls, name)
    config = Config(**sections)
    training, averaging = config.training, config.averaging
    check_name("averaging.partition", averaging.partition, PARTITIONS)
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
    if not isinstance(values, dict):
        return  # parse will say so
    if key == "name" and values.get("name") != value:
        values.clear()  # another component has other options
    if section == "training":
        values.pop({"steps": "epochs", "epochs": "steps"}.get(key), None)  # one budget, not two
    values[key] = value


def dump(config: Config) -> str:
    """The TOML text of a config; `parse` reads it back to an equal one."""
    lines = []
    for section, values in asdict(config).items():
        options = values.pop("options", {})
        lines.append(f"[{section}]")
        lines += [f"{k} = {_toml(v)}" for k, v in (values | options).items() if v is not None]
        lines.append("")
    return "\n".join(lines)


def differences(one: Config, other: Config) -> list[str]:
    """The keys in which two configs differ."""
    tables = [tomllib.loads(dump(config)) for config in (one, other)]
    flat = [
        {f"{section}.{key}": v for section, values in table.items() for key, v in values.items()}
        for table in tables
    ]
    return [key for key in {**flat[0], **flat[1]} if flat[0].get(key) != flat[1].get(key)]


def create(kind: str, component: Component, *arguments: Any) -> Any:
    """Make what a component describes."""
    registry, _ = COMPONENTS[kind]
    return registry[component.name](*arguments, **component.options)


def _section(table: Table, cls: type, name: str) -> Any:
    hints = get_type_hints(cls, include_extras=True)
    _check_keys(table, hints, f"{name}.")
    return cls(**{key: _value(hints[key], v, f"{name}.{key}") for key, v in table.items()})


def _component(table: Table, kind: str) -> Component:
    registry, default = COMPONENTS[kind]
    name = _value(str, table.get("name", default), f"{kind}.name")
    check_name(f"{kind}.name", name, registry)
    known = _options(registry[name])
    given = {key: value for key, value in table.items() if key != "name"}
    _check_keys(given, {"name": None, **known}, f"{kind}.")
    options = {
        key: _value(parameter.annotation, given.get(key, parameter.default), f"{kind}.{key}")
        for key, parameter in known.items()
    }
    return Component(name, options)


def _options(builder: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A component's options: a dataclass's fields, a function's keyword-only arguments."""
    parameters = inspect.signature(builder, eval_str=True).parameters
    if is_dataclass(builder):
        return {f.name: parameters[f.name] for f in fields(builder)}
    return {k: p for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _value(hint: Any, value: Any, key: str) -> Any:
    if isinstance(value, list):
        value = tuple(value)
    try:
        return TypeAdapter(hint, config=_FINITE).validate_python(value, strict=True)
    except ValidationError as error:
        rule = error.errors()[0]["msg"]
        raise ValueError(f"{key} = {_toml(value)}: {rule[0].lower()}{rule[1:]}") from None


def _check_keys(table: Table, known: Iterable[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {prefix + key!r}: {_suggest(key, known, prefix)}")


def check_name(key: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError with a suggestion if a name is not known."""
    if name not in known:
        raise ValueError(f"{key} = {name!r} is not known: {_suggest(name, known)}")


def _suggest(word: str, known: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    return f"use {', '.join(prefix + name for name in known)}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    # JSON's strings are TOML's, but for this one character.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
