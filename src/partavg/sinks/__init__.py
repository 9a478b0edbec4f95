"""Where the metrics of a run go while it goes on, and which of these places a recipe can name."""

from collections.abc import Callable, Iterable, Mapping

from partavg.config import Component, Metrics
from partavg.config_toml import components
from partavg.registry import Names, mismatch
from partavg.sentences import shown
from partavg.sinks.mlflow import MLflow
from partavg.sinks.sink import Sink, SinkLike, as_sink
from partavg.sinks.tensorboard import TensorBoard
from partavg.sinks.wandb import WandB

SINKS: Names[Callable[..., object]] = Names(
    "sink", {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB}
)
"""Sinks that a recipe turns on by name: what makes one, or a function of a row."""


def chosen(options: Metrics) -> list[Sink]:
    """The sinks that a recipe turns on; a ValueError if one cannot be used."""
    asked = list(options.sinks or ())
    if options.tensorboard and all(sink.name != "tensorboard" for sink in asked):
        asked.insert(0, Component("tensorboard"))
    return [_made(sink, "metrics.sinks") for sink in asked]


def sinks_of(things: Iterable[SinkLike]) -> list[Sink]:
    """The sinks that a list in Python gives.

    >>> rows = []
    >>> [type(sink).__name__ for sink in sinks_of([rows.append, "tensorboard"])]
    ['Call', 'TensorBoard']
    """
    if not isinstance(things, list | tuple):
        raise ValueError(f"sinks = {shown(things)} is no list: write sinks=[{shown(things)}]")
    return [_sink(thing) for thing in things]


def _sink(thing: object) -> Sink:
    if isinstance(thing, str | Mapping):
        (component,) = components([thing], SINKS, "sinks")
        return _made(component, "sinks")
    return as_sink(thing)


def _made(component: Component, key: str) -> Sink:
    name, options = component.name, component.options
    make = SINKS.find(name, key)
    problem = mismatch(make, **options)
    if problem and not options and not mismatch(make, {}):
        return as_sink(make)  # a function of a row
    if problem:
        given = "with its options alone" if options else "without arguments"
        raise ValueError(f"sink {name!r} cannot be called {given}: {problem}")
    try:
        sink: object = make(**options)
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"sink {name!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if isinstance(sink, type) or not isinstance(sink, Sink):
        raise ValueError(
            f"sink {name!r} gave {type(sink).__name__}, which has not the functions begin, take "
            f"and end: add them"
        )
    return sink
