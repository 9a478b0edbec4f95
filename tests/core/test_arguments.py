"""What callers give is looked at: one sentence for each mistake."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from partavg.core.arguments import check_choice, check_flag, check_kind, check_number, check_whole


def test_what_is_right_is_taken() -> None:
    assert check_whole("batch", np.int64(3), 1) == 3
    assert type(check_whole("batch", np.int64(3), 1)) is int
    assert check_whole("seed", -3) == -3
    check_number("lr", 0.1)
    check_flag("resume", False)
    check_kind("name", "run", str, "a text")
    check_choice("store", "host", ("auto", "host"))


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: check_whole("batch", 0, 1), "batch 0 is no whole number from 1: use one"),
        (lambda: check_whole("batch", True), "batch True is no whole number: use one"),
        (lambda: check_whole("batch", 2.0), "batch 2.0 is no whole number: use one"),
        (lambda: check_number("lr", "0.1"), "lr '0.1' is no number: use one, like 0.1"),
        (lambda: check_number("lr", True), "lr True is no number"),
        (lambda: check_number("lr", math.nan), "lr nan is not finite"),
        (lambda: check_flag("resume", 1), "resume 1 says neither yes nor no: use True or False"),
        (lambda: check_kind("name", int, str, "a text"), "name int is a class: call it, int(…)"),
        (lambda: check_kind("name", [1], str, "a text"), "name list cannot be used: give a text"),
        (lambda: check_choice("bank", "x", ("a", "b")), "bank 'x' is not known: use a or b"),
        (lambda: check_choice("bank", 3, ("a", "b", "c")), "bank 3 is not known: use a, b, c"),
    ],
)
def test_what_is_wrong_is_one_sentence(check: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check()
