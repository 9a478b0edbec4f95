"""Whether a loss of a user's own counts its calls, and may do something else at a later one."""

import inspect
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count, islice
from types import FunctionType, MethodType, ModuleType

import torch
from torch import Tensor, nn

from partavg.losses import of_torch_or_ours

_MOST = 1000  # things that are looked at, the nearest first


def counts_calls(loss: object, call: Callable[[], object]) -> bool:
    """Whether a loss keeps what is another one after a second call on the same numbers."""
    with torch.no_grad():
        call()
        before = _kept(loss)
        call()
    return _kept(loss) != before


def _kept(loss: object) -> list[object]:
    """All by which it could count, as far as it can be seen: numbers, texts and lengths."""
    found: list[object] = []
    known: dict[int, object] = {}
    waiting = deque([loss])
    while waiting and len(known) < _MOST:
        thing = waiting.popleft()
        if thing is None or isinstance(thing, int | float | str):
            found.append(thing)
        elif isinstance(thing, Tensor):
            with suppress(RuntimeError):  # of a pass that is over
                found += [thing.item()] if thing.numel() == 1 else []
        elif isinstance(thing, count):
            found.append(repr(thing))
        elif not isinstance(thing, type | ModuleType) and id(thing) not in known:
            known[id(thing)] = thing
            if isinstance(thing, dict | list | tuple | set | deque):
                found.append(len(thing))
            waiting.extend(islice(_held(thing), _MOST))
    return found


def _held(thing: object) -> Iterable[object]:
    """What something holds or, of a function, names."""
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, list | tuple | set | deque):
        return thing
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, MethodType):
        return thing.__self__, thing.__func__
    if isinstance(thing, FunctionType):
        if of_torch_or_ours(thing):
            return ()
        try:
            named = inspect.getclosurevars(thing)
        except ValueError:  # a name that has no value yet
            return ()
        return named.nonlocals, named.globals
    called = getattr(type(thing), "forward" if isinstance(thing, nn.Module) else "__call__", None)
    return getattr(thing, "__dict__", {}), called if isinstance(called, FunctionType) else None
