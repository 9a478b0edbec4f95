"""Where the metrics of a run go while it goes on, and which of these places a recipe can name."""

from collections.abc import Callable

from partavg.config import Component, Metrics
from partavg.registry import Names, mismatch
from partavg.sinks.sink import Sink
from partavg.sinks.tensorboard import TensorBoard

SINKS: Names[Callable[..., Sink]] = Names("sink", {"tensorboard": TensorBoard})
"""Sinks that a recipe turns on by name; what they need is opened when a run begins."""


def chosen(options: Metrics) -> list[Sink]:
    """The sinks that a recipe turns on; a ValueError if one cannot be used."""
    asked = list(options.sinks or ())
    if options.tensorboard and all(sink.name != "tensorboard" for sink in asked):
        asked.insert(0, Component("tensorboard"))
    return [_made(sink) for sink in asked]


def _made(component: Component) -> Sink:
    name, options = component.name, component.options
    make = SINKS.find(name, "metrics.sinks")
    if problem := mismatch(make, **options):
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
