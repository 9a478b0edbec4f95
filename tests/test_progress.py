"""Bars of runs in a terminal."""

import re
from io import StringIO

import pytest
from rich.console import Console

from partavg.sinks.progress import Bars
from partavg.sinks.sink import RunInfo


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("synchronous seed 2", "synchronous seed 2"),
        ("partial momentum=0.9_weights=uniform_hidden=8_batch=16", r"partial momentum=0\.\S*…"),
    ],
)
def test_where_lines_are_short_names_and_what_was_measured_are_cut(
    width: int, label: str, shown: str
) -> None:
    screen = StringIO()
    with Bars(Console(file=screen, force_terminal=True, width=width)) as bars:
        bars.begin(RunInfo(label, 3000))
        bars.take({"step": 3000, "loss": 170031440.0, "accuracy": 0.41, "discrepancy": 1.37e18})
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue()).strip())
    assert re.fullmatch(shown + r" ━{10} 3000/3000 loss .*… \d+:\d\d", lines[-1])
