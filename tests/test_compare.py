from pathlib import Path

import pytest
from tests import tasks

from partavg.comparison import PlannedRun, Result, planned_runs, results


def test_a_plan_has_every_scheme_with_every_seed(tmp_path: Path) -> None:
    recipe = tasks.recipe(averaging={"interval": 12})
    entries = planned_runs(recipe, ["periodic", "partial", "synchronous", "4-parts"], 2, tmp_path)
    seen = [
        (e.scheme, e.seed, e.config.averaging.interval, e.config.averaging.parts) for e in entries
    ]
    assert seen == [
        ("periodic", 0, 12, 1), ("partial", 0, 12, 12), ("synchronous", 0, 1, 1),
        ("4-parts", 0, 12, 4), ("periodic", 1, 12, 1), ("partial", 1, 12, 12),
        ("synchronous", 1, 1, 1), ("4-parts", 1, 12, 4),
    ]  # fmt: skip
    assert len({entry.folder.path for entry in entries}) == 8


@pytest.mark.parametrize(
    ("schemes", "seeds", "sentence"),
    [
        (["partial"], 0, "0 seeds give no run"),
        ([], 1, "at least one"),
        (["partial", "partial"], 1, "name each scheme once"),
        (["parital"], 1, "scheme 'parital' is not known: use periodic, partial, synchronous"),
        (["0-parts"], 1, "scheme '0-parts' is not known"),
        (["-parts"], 1, "scheme '-parts' is not known"),
    ],
)
def test_bad_plans_are_refused(tmp_path: Path, schemes, seeds: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        planned_runs(tasks.recipe(), schemes, seeds, tmp_path)


def result(scheme: str, *values: tuple[float, float]) -> Result:
    usual = {"scale": 1.0, "bytes": 100}
    return Result(scheme, tuple({"accuracy": a, "peak_discrepancy": d, **usual} for a, d in values))


def test_numbers_in_tables() -> None:
    found = result("partial", (0.80, 1e-12), (0.82, 1e-12))
    assert found.text("accuracy", ".2f", 100) == "81.00 ± 1.41"
    assert found.text("peak_discrepancy", "#.3g") == "0.00 ± 0.00"
    assert result("partial", (0.8, 1.2345)).text("peak_discrepancy", "#.3g") == "1.23"
    assert result("partial", (0.8, 3.7), (0.8, 3.9)).text("peak_discrepancy", "#.3g") == (
        "3.80 ± 0.14"
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> list[PlannedRun]:
    out = tmp_path_factory.mktemp("comparison")
    entries = planned_runs(tasks.recipe(), ["periodic", "partial"], 2, out)
    for entry in entries:
        run = tasks.Run(entry.config, tasks.data(), entry.folder, resume=False, force=False)
        for _ in run:
            pass
    return entries


def test_schemes_start_at_the_same_point_and_send_the_same(finished: list[PlannedRun]) -> None:
    firsts = {(e.seed, next(e.folder.rows())["loss"]) for e in finished}
    assert len(firsts) == 2, "one first loss per seed"
    traffic = {summary["bytes"] for r in results(finished) for summary in r.summaries}
    assert len(traffic) == 1
