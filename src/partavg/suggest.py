"""Names that people type: one that is not known, and what may have been meant."""

import difflib
from collections.abc import Iterable


def check_name(key: str, name: str, known: Iterable[str], otherwise: str = "") -> None:
    """Raise a ValueError if a name is not known: with a close one, or what to do otherwise."""
    if name not in known:
        hint = suggestion(name, known)
        if otherwise and not hint.startswith("did"):
            hint = otherwise
        raise ValueError(f"{key} = {name!r} is not known: {hint}")


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The known word that is close, or all of them.

    >>> suggestion("cifra10", ["cifar10", "svhn"]), suggestion("x", ["cifar10", "svhn"])
    ("did you mean 'cifar10'?", 'use cifar10, svhn')
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    return f"use {', '.join(prefix + name for name in known)}"
