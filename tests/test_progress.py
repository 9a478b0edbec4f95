"""Bars of runs in a terminal."""

import re
from io import StringIO

import pytest
from rich.console import Console

from partavg.sinks.progress import Bars
from partavg.sinks.sink import RunInfo


@pytest.mark.parametrize("width", [60, 80])
def test_where_lines_are_short_only_what_was_measured_is_cut(width: int) -> None:
    screen = StringIO()
    with Bars(Console(file=screen, force_terminal=True, width=width)) as bars:
        bars.begin(RunInfo("synchronous seed 2", 3000))
        bars.take({"step": 3000, "loss": 170031440.0, "accuracy": 0.41, "discrepancy": 1.37e18})
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue()).strip())
    assert re.fullmatch(r"synchronous seed 2 ━{10} 3000/3000 loss .*… \d+:\d\d", lines[-1])
