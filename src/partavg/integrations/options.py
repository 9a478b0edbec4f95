"""What the integrations of all frameworks are given: the options of `attach`."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from partavg.backends.distributed import attach


def missing(module: str, package: str, extra: str) -> ModuleNotFoundError:
    """The error of a framework that is not installed."""
    return ModuleNotFoundError(
        f"partavg.integrations.{module} needs {package}, which is not installed: "
        f"pip install 'partavg[{extra}]'"
    )


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, or a ValueError where `attach` has none of that name.

    They are used when training begins, long after whoever wrote them.
    """
    parameters = signature(attach).parameters.values()
    known = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ValueError(f"option {name!r} is not known: use {', '.join(sorted(known))}")
    return dict(options)
