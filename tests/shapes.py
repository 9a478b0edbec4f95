"""Shapes in annotations, checked at run time: once for all arguments that look alike.

A loop calls with the same shapes again and again, and jaxtyping takes longer than our functions.
Where annotations have no shape, beartype alone says the same at every call, and sooner.
"""

from collections.abc import Callable
from functools import partial, wraps
from itertools import islice
from types import FunctionType
from typing import Any, get_args
from unittest.mock import patch

import jaxtyping
import numpy as np
from jaxtyping import _decorator
from torch import Tensor
from torch.nn.parameter import is_lazy


def check(modules: list[str]) -> None:
    """Check what these modules of partavg, not yet imported, will define."""
    if jaxtyping.config.jaxtyping_disable:
        return
    once = partial(_once, jaxtyping.jaxtyped)
    for module in (jaxtyping, _decorator):  # the latter calls it for properties and dataclasses
        patch.object(module, "jaxtyped", once).start()
    names = [f"partavg.{name}" for name in modules]
    jaxtyping.install_import_hook(names, "beartype.beartype").__enter__()


def _once(jaxtyped: Any, thing: Any = None, **options: Any) -> Any:
    """Stands in for `jaxtyping.jaxtyped`."""
    if thing is None:
        return partial(_once, jaxtyped, **options)
    if isinstance(thing, FunctionType) and options and not shaped(*thing.__annotations__.values()):
        return options["typechecker"](thing)
    checked = jaxtyped(thing, **options)
    return _unless_seen(thing, checked) if isinstance(thing, FunctionType) else checked


def shaped(*hints: Any) -> bool:
    """Whether annotations have shapes; those in quotes may."""
    return any(
        isinstance(hint, str)
        or (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray))
        or shaped(*(hint if isinstance(hint, list) else get_args(hint)))
        for hint in hints
    )


def _unless_seen(function: FunctionType, checked: Callable[..., Any]) -> Callable[..., Any]:
    seen = set()

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        looks = look(args), look(kwargs)
        if not any(_has_shape(value) for value in (*args, *kwargs.values())):
            return checked(*args, **kwargs)  # the shape of the answer depends on other things
        if looks in seen:
            return function(*args, **kwargs)
        answer = checked(*args, **kwargs)
        seen.add(looks)
        return answer

    return call


def _has_shape(value: Any) -> bool:
    """Whether a value is a tensor, or begins with one."""
    if isinstance(value, list | tuple | dict) and value:
        return _has_shape(next(iter(value.values() if isinstance(value, dict) else value)))
    return isinstance(value, Tensor | np.ndarray)


def look(value: Any) -> Any:
    """What a check of types and shapes can see of a value, of a container its first items."""
    if isinstance(value, Tensor | np.ndarray) and not is_lazy(value):
        return type(value), value.dtype, value.shape
    if isinstance(value, list | tuple):
        return type(value), len(value), *map(look, value[:9])
    if isinstance(value, dict):
        first = islice(value.items(), 9)
        return type(value), len(value), *((key, look(item)) for key, item in first)
    return value[:40] if isinstance(value, str) else type(value)
