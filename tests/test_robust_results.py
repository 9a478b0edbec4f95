"""What the page on attackers says was measured is what was measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_has_the_tables_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import robust_study
    import robust_tables

    page = (ROOT / "docs/robust.md").read_text()
    known = robust_study.read(ROOT / "results/robust/rows.csv")
    tables = [robust_tables.rates_table(known), robust_tables.gain_table(known)]
    tables.append(robust_tables.slow_table(known))
    tables += [robust_tables.accuracy_table(known, scheme) for scheme in robust_study.SCHEMES]
    for table in tables:
        assert "\n".join(table) in page, table[0]
    wanted = set(robust_study.judging(known)) & known.keys()
    seeds = {task.seed for task in wanted}
    assert len(wanted) == len(seeds) * len(robust_study.SCHEMES) * 4 * 13, "whole seeds only"
    for name in ("robust_study", "robust_tables"):
        del sys.modules[name]
