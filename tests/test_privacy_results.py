"""What the page on privacy says is what was measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from privacy_study import (  # noqa: E402
    CHOSEN_BY,
    CLIPS,
    CYCLES,
    EPSILONS,
    FRACTIONS,
    JUDGED_BY,
    RATES,
    SCHEMES,
    Rows,
    Setting,
    table,
)


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows(ROOT / "results" / "privacy")


def test_the_page_has_the_tables(rows: Rows) -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    for fraction in FRACTIONS:
        lines = list(table(rows, fraction))
        assert len(lines) == 2 + len(EPSILONS)
        assert "\n".join(lines) in page, f"python benchmarks/privacy_study.py: {fraction}"


def test_choices_were_made_on_validation_samples_and_judged_on_others(rows: Rows) -> None:
    for row in rows.all:
        assert (row.judged_on == "validation") == (row.seed == CHOSEN_BY)
        assert row.spent is None or row.spent <= (row.epsilon or 0)
    for fraction in FRACTIONS:
        for epsilon in EPSILONS:
            for scheme in SCHEMES:
                tried = [
                    row
                    for rate in RATES
                    for clip in CLIPS
                    for row in rows.of(Setting(fraction, epsilon, scheme, rate, clip)).values()
                ]
                chosen = [row for row in tried if row.seed == CHOSEN_BY]
                assert len(chosen) == len(RATES) * len(CLIPS)
                assert sorted(rows.judged(fraction, epsilon, scheme)) == list(JUDGED_BY)


def test_all_schemes_sent_the_same_and_spent_the_same(rows: Rows) -> None:
    pytest.importorskip("dp_accounting")
    from partavg.privacy.accountant import Accountant

    assert len({row.sent for row in rows.all}) == 1
    known = {(row.fraction, row.noise, row.spent) for row in rows.all if row.spent}
    assert len(known) == len(FRACTIONS) * (len(EPSILONS) - 1)
    for fraction, noise, spent in known:
        found = Accountant(noise, fraction).epsilon(CYCLES)
        assert found == pytest.approx(spent, abs=1e-3)
