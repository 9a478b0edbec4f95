"""The clients of a federated run on the page: one by one, and why some were away."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import make

from partavg.report.page import page, write_page
from partavg.report.runs import gather

OLD = {"samples": 20, "sent": 1_500_000, "received": 250_000, "away": [{"step": 4}]}


def federated(folder: Path, clients: dict[str, Any]) -> Path:
    """A run that had clients."""
    path = make(folder, rich=False)
    summary = json.loads((path / "summary.json").read_text()) | {"clients": clients}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def cells(text: str, caption: str) -> list[list[str]]:
    """The rows of a table."""
    table = text[text.index(f"<caption><span>{caption}") :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in rows
    ]


def known(**changes: Any) -> dict[str, Any]:
    about = {
        **OLD, "tests": 12, "scored": {"step": 8, "loss": 0.5, "accuracy": 0.75}, "seen": 8,
        "late": 0, "absences": 0, "away": [],
    }  # fmt: skip
    return {**about, **changes}


def test_each_client_has_a_row_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    away = [{"step": k, "why": "error 3: expired"} for k in (1, 1, 2, 3, 4, 5, 6, 7)]
    away += [{"step": 8, "why": "it <lost> its state"}]
    federated(
        tmp_path / "mine",
        {
            "10": known(tests=0, scored={}),
            "9": known(away=away, absences=40, late=3, samples=12_345),
        },
    )
    text = page(gather([tmp_path / "mine"]))
    head, *rows = cells(text, "Clients of mine")
    assert head == [
        "client", "samples", "test samples", "accuracy %", "test loss", "MB sent", "MB received",
        "last seen", "not waited for", "away",
    ]  # fmt: skip
    assert rows == [
        ["client 9", "12,345", "12", "75.00", "0.5000", "1.500", "0.250", "step 8", "3", "40×"],
        ["client 10", "20", "–", "–", "–", "1.500", "0.250", "step 8", "–", "–"],
    ]
    assert cells(text, "Why clients of mine were away")[1:] == [
        ["client 9", "… 2, 3, 4, 5, 6, 7", "error 3: expired"],
        ["client 9", "8", "it &lt;lost&gt; its state"],
    ]


def test_runs_of_earlier_versions_show_what_they_have(tmp_path: Path) -> None:
    federated(tmp_path / "old", {"0": OLD, "1": {**OLD, "away": []}})
    text = page(gather([tmp_path / "old"]))
    assert cells(text, "Clients of old") == [
        ["client", "samples", "MB sent", "MB received", "away"],
        ["client 0", "20", "1.500", "0.250", "1×"],
        ["client 1", "20", "1.500", "0.250", "–"],
    ]


def test_seeds_have_clients_each_and_thousands_are_cut_short(tmp_path: Path) -> None:
    federated(tmp_path / "s-seed0", {str(i): known() for i in range(1000)})
    federated(tmp_path / "s-seed1", {"0": known()})
    text = page(gather([tmp_path]))
    assert len(cells(text, "Clients of s, seed 0, the first 200 of 1000")) == 201
    assert len(cells(text, "Clients of s, seed 1")) == 2


@pytest.mark.parametrize(
    "damage",
    [{"scored": 3}, {"scored": {"loss": "low"}}, {"tests": "many"}, {"late": None}, {"seen": []}],
)
def test_a_damaged_client_is_named(tmp_path: Path, damage: dict[str, Any]) -> None:
    federated(tmp_path / "run", {"0": known(**damage)})
    with pytest.raises(ValueError, match=r"clients are not told of as they should be"):
        gather([tmp_path / "run"])


@pytest.mark.slow
def test_it_fits_a_screen(browser: Any, tmp_path: Path) -> None:
    """A long reason does not make the table of clients wide."""
    reason = "it is very long, " * 20
    federated(
        tmp_path / "run",
        {"0": known(away=[{"step": 1, "why": reason}], absences=1), "1": known(late=2)},
    )
    path = write_page(tmp_path / "report.html", gather([tmp_path / "run"]))
    with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        visited = context.new_page()
        visited.goto(path.as_uri())
        for caption in ("Clients of run", "Why clients of run were away"):
            place = visited.locator(f'.scroll[aria-label="{caption}"]')
            assert place.evaluate("e => e.scrollWidth <= e.clientWidth")
