"""JSON that every reader takes."""

import json
import math
from typing import Any


def json_text(value: Any, **options: Any) -> str:
    """A value as JSON; a number that is not finite is null.

    >>> json_text({"loss": float("inf"), "steps": [1, 2.5, float("nan")]})
    '{"loss": null, "steps": [1, 2.5, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
