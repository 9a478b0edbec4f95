"""`partavg privacy`, and private recipes on the command line."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from partavg.cli import main

pytestmark = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)

RECIPE = """
[training]
workers = 12
steps = 40
[averaging]
interval = 4
[privacy]
clip = 1.0
noise = 2.0
max_epsilon = 3.0
[participation]
fraction = 0.5
every = 4
redistribution = "released"
[metrics]
evaluate_every = 4
"""


def said(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, list(words))
    return found.exit_code, " ".join(found.output.split())


def test_it_says_what_cycles_cost_and_what_noise_an_epsilon_takes() -> None:
    assert said("privacy", "--cycles", "50", "--noise", "1.1") == (
        0,
        "privacy.noise = 1.1: ε = 47.31 at δ = 1e-05 after 50 cycles",
    )
    code, text = said("privacy", "--cycles", "50", "--epsilon", "4", "--clients", "1000")
    assert code == 0
    assert text.startswith("privacy.noise = 7.65: ε = 3.997 at δ = 1e-05 after 50 cycles")
    assert text.endswith("in every number of a mean over 1000 clients: 0.00765 × the clip")


@pytest.mark.parametrize("more", [[], ["--noise", "1", "--epsilon", "1"]])
def test_it_takes_one_of_both(more: list[str]) -> None:
    code, text = said("privacy", "--cycles", "5", *more)
    assert (code, "give either --noise" in text) == (2, True)


def test_noise_that_protects_nobody_is_not_accounted_for_minutes() -> None:
    code, text = said("privacy", "--cycles", "5", "--noise", "1e-6")
    assert (code, "not in the range x>=0.2" in text) == (2, True)
    assert said("privacy", "--cycles", "5", "--epsilon", "1e9")[1].startswith(
        "privacy.noise = 0.2:"
    )


def recipe(folder: Path, *changes: tuple[str, str]) -> str:
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "recipe.toml"
    path.write_text(text)
    return str(path)


def test_a_private_recipe_ends_before_it_spends_too_much(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = said("run", recipe(tmp_path), "--out", str(out))
    assert code == 0
    assert "ended by max_epsilon" in text
    assert re.search(r"ε \d\.\d+ at δ = 1e-05", text), "never an ε alone"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stopped_by"] == "max_epsilon"
    assert summary["steps"] == summary["stopped_at"] < 40
    assert 2.5 < summary["epsilon"] <= 3.0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert not any("loss" in row for row in rows)
    assert all(row["delta"] == 1e-5 for row in rows if "epsilon" in row)
    page = (out / "report.html").read_text()
    assert "ended by max_epsilon" in page
    again = said("run", recipe(tmp_path), "--out", str(out), "--resume")
    assert again[0] == 0, "it is finished"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("noise = 2.0\n", ""), "privacy.noise is missing"),
        (("max_epsilon = 3.0", "max_epsilon = 0.1"), "below what the first cycle costs"),
        (('"released"', '"permute"'), "participation.redistribution = 'permute'"),
        (("every = 4\nred", "every = 8\nred"), "participation.every = 8"),
        (("evaluate_every = 4", "discrepancy_every = 4"), "metrics.discrepancy_every = 4 shows"),
        (("evaluate_every = 4", 'local_accuracy = ["best"]'), "metrics.local_accuracy"),
        (("interval = 4", 'interval = 4\nweights = "samples"'), "averaging.weights = 'samples'"),
        (("clip = 1.0", "clip = -1.0"), "privacy.clip = -1.0"),
        (("clip = 1.0", "klip = 1.0"), "privacy.klip"),
    ],
)
def test_what_would_break_it_ends_with_2_and_a_sentence(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    code, text = said("run", recipe(tmp_path, change), "--out", str(tmp_path / "run"))
    assert code == 2
    assert reason in text
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_theorems_do_not_cover_it(tmp_path: Path) -> None:
    code, text = said("theory", recipe(tmp_path))
    assert (code, "proofs do not cover it" in text) == (2, True)
