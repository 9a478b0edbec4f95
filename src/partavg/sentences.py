"""Pieces of the sentences that errors say."""

import math
from numbers import Integral, Real
from typing import Any


def shown(value: object) -> str:
    """A value as a sentence names it: plain ones as they are, others by their name or their type.

    >>> shown("0.1"), shown(len), shown([1, 2])
    ("'0.1'", 'len', 'list')
    """
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))


def reason(error: BaseException) -> str:
    r"""The first line of what an error says, or its type where it says nothing.

    >>> reason(RuntimeError("out of range\nat line 3")), reason(KeyError())
    ('out of range', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def whole_number(value: Any, what: str, least: int | None = None) -> int:
    """A whole number; a ValueError for what is none, or smaller."""
    if (
        not isinstance(value, Integral)
        or isinstance(value, bool)
        or (least is not None and int(value) < least)
    ):
        start = "" if least is None else f" from {least}"
        raise ValueError(f"{what} {value!r} is no whole number{start}: use one")
    return int(value)


def real_number(value: Any, what: str) -> float:
    """A finite number; a ValueError for what is none."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{what} {value!r} is no finite number: use one")
    return float(value)
