"""What callers give, looked at before it is used: one sentence for each mistake."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any

from partavg.sentences import shown


def check_whole(what: str, value: Any, least: int | None = None) -> int:
    """A whole number; a ValueError for what is none, or smaller."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or (least is not None and int(value) < least):
        start = "" if least is None else f" from {least}"
        raise ValueError(f"{what} {shown(value)} is no whole number{start}: use one")
    return int(value)


def check_number(what: str, value: Any) -> None:
    """Raise a ValueError for what is no number, or not a finite one."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{what} {shown(value)} is no number: use one, like 0.1")
    if not math.isfinite(value):
        raise ValueError(f"{what} {value} is not finite: use a number, like 0.1")


def check_flag(what: str, value: Any) -> None:
    """Raise a ValueError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} {shown(value)} says neither yes nor no: use True or False")


def check_kind(what: str, value: Any, kind: type | UnionType, hint: str) -> None:
    """Raise a ValueError for what is of another kind, or a class instead of one of its objects."""
    if isinstance(value, type):
        raise ValueError(f"{what} {value.__name__} is a class: call it, {value.__name__}(…)")
    if not isinstance(value, kind):
        raise ValueError(f"{what} {shown(value)} cannot be used: give {hint}")


def check_choice(what: str, value: Any, known: Sequence[str]) -> None:
    """Raise a ValueError for what is not one of some words."""
    if not isinstance(value, str) or value not in known:
        words = (" or " if len(known) == 2 else ", ").join(known)
        raise ValueError(f"{what} {shown(value)} is not known: use {words}")
