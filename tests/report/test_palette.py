"""One palette: every chart takes its colors from there, and they can be told from the page."""

import re
from itertools import product
from pathlib import Path

import pytest

import partavg
from partavg import notebook
from partavg.report import figures, palette
from partavg.report.bars import bars
from partavg.report.page import page
from partavg.report.palette import DARK, DASHES, LIGHT, Theme


def test_no_color_is_written_anywhere_else() -> None:
    source = Path(partavg.__file__).parent
    files = [source / "notebook.py", *(source / "report").iterdir(), *source.glob("cli/*.py")]
    for path in files:
        if path.suffix in (".py", ".css", ".js", ".html") and path.name != "palette.py":
            assert not re.search(r"#[0-9a-fA-F]{3,6}\b|hsl\(", path.read_text()), path.name


def test_all_charts_take_them() -> None:
    shown = page([]), notebook.Figure("")._repr_html_()
    for text, theme, color in product(shown, (LIGHT, DARK), range(8)):
        assert f"--c{color}: {theme.lines[color]};" in text
    assert all(f".d{place} {{ stroke-dasharray:" in text for text in shown for place in range(1, 5))
    assert figures._COLORS is LIGHT.lines
    assert LIGHT.soft in bars("split", [[1, 2]])
    assert palette.class_color(0, 10) in bars("split", [[1] * 10])


def light(color: str) -> float:
    """Relative luminance, as WCAG defines it."""
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    channels = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colors_stand_out(theme: Theme) -> None:
    assert all(contrast(color, theme.page) >= 3 for color in theme.lines)
    for color in (theme.text, theme.soft, theme.accent):
        assert contrast(color, theme.page) >= 4.5
    assert len(theme.lines) == len(set(theme.lines)) == 8


def test_pairs_of_color_and_dash_repeat_late() -> None:
    pairs = {(place % len(LIGHT.lines), place % len(DASHES)) for place in range(40)}
    assert len(pairs) == 40
    assert len(set(palette.heat(24))) == 24
