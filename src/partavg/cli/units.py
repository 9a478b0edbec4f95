"""Speeds and times as people write them."""

import re
from math import isfinite

_BYTES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_AGES = {"min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(\d+(?:\.\d+)?)\s*"


def bandwidth(text: str) -> float:
    """Bytes per second.

    >>> bandwidth("100Mbit"), bandwidth("12.5MB/s")
    (12500000.0, 12500000.0)
    """
    match = re.fullmatch(_NUMBER + r"([kMG]?)(bit|B)(?:/s)?", text.strip())
    speed = float(match[1]) * _BYTES[match[2]] / (8 if match[3] == "bit" else 1) if match else 0.0
    if not speed or not isfinite(speed):
        raise ValueError(
            f"{text!r} is no bandwidth: it is a number above 0 with bit, kbit, Mbit, Gbit, B, kB, "
            f"MB or GB, per second; write 100Mbit or 12.5MB"
        )
    return speed


def age(text: str) -> float:
    """Seconds, of what is minutes, hours or days old.

    >>> age("30min"), age("12h"), age("7d")
    (1800.0, 43200.0, 604800.0)
    """
    return _amount(text, _AGES, "age", "min, h or d; write 7d")


def duration(text: str) -> float:
    """Seconds.

    >>> duration("20ms"), duration("1s"), duration("0ms")
    (0.02, 1.0, 0.0)
    """
    return _amount(text, _SECONDS, "time", "us, ms or s; write 20ms")


def _amount(text: str, units: dict[str, float], what: str, known: str) -> float:
    """A number in one of some units; a ValueError says which are `known`."""
    match = re.fullmatch(f"{_NUMBER}({'|'.join(units)})", text.strip())
    amount = float(match[1]) * units[match[2]] if match else -1.0
    if amount < 0 or not isfinite(amount):
        raise ValueError(f"{text!r} is no {what}: it is a number of at least 0 with {known}")
    return amount
