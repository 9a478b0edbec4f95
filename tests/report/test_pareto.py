"""Results against costs: who is on the front, and what is said of those behind it."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from tests.report.folders import make

from partavg.report.axes import Axes, unit_of_bytes, unit_of_seconds
from partavg.report.page import page
from partavg.report.pareto import Costs, Spot, front, of_results
from partavg.report.runs import gather, grouped
from partavg.report.scatter import draw

ACCURACY = {
    "periodic": [0.70, 0.71, 0.72],
    "partial": [0.81, 0.80, 0.82],
    "synchronous": [0.90, 0.92, 0.91],
    "slow": [0.905, 0.90, 0.93],
}
SENT = {"periodic": 1e6, "partial": 1e6, "synchronous": 20e6, "slow": 40e6}


def costs(out: Path, seeds: int = 3, **changes: float) -> dict[str, Costs]:
    """Four schemes, of which one sends most and is not better."""
    for scheme, values in ACCURACY.items():
        for seed in range(seeds):
            path = make(out / f"{scheme}-seed{seed}", seed=seed, rich=False, steps=10)
            summary = json.loads((path / "summary.json").read_text())
            summary |= {"accuracy": values[seed], "bytes": SENT[scheme], **changes}
            (path / "summary.json").write_text(json.dumps(summary))
    return {one.key: one for one in of_results(grouped(gather([out])))}


def dominated(spot: Spot, others: list[Spot], sign: int) -> bool:
    """As the definition says it: another costs no more, is no worse, and is better in one."""
    return any(
        other.x <= spot.x
        and sign * other.y >= sign * spot.y
        and (other.x, other.y) != (spot.x, spot.y)
        for other in others
    )


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_the_front_is_what_nothing_dominates(better: str) -> None:
    draw_from = random.Random(0)
    for _ in range(200):
        spots = [
            Spot(place, str(place), draw_from.randrange(6), draw_from.randrange(6))
            for place in range(draw_from.randrange(1, 9))
        ]
        sign = 1 if better == "higher" else -1
        slow = {(s.x, s.y) for s in spots if not dominated(s, spots, sign)}
        found = front(spots, better)
        assert {(s.x, s.y) for s in found} == slow
        assert [s.x for s in found] == sorted({s.x for s in found})


def test_schemes_are_named_on_the_front_or_behind_it(tmp_path: Path) -> None:
    found = costs(tmp_path)["pareto-bytes"]
    assert [spot.name for spot in found.front] == ["partial", "synchronous", "slow"]
    assert found.said == (
        "On the front: partial (1 MB, 81.00 %); synchronous (20 MB, 91.00 %); slow (40 MB, "
        "91.17 %). periodic is behind partial (10.00 points of accuracy)."
    )
    assert found.x_label == "MB sent (logarithmic)"
    assert found.title == "Final accuracy against traffic"
    seeds = [spot for spot in found.spots if spot.faint]
    assert len(seeds) == 12
    low, high = next(spot for spot in found.spots if spot.name == "partial").ends or (0, 0)
    assert (low, high) == pytest.approx(
        (81 - 4.303 * 1 / 3**0.5, 81 + 4.303 * 1 / 3**0.5), abs=1e-3
    )


def test_what_seeds_cannot_tell_is_a_tie_and_few_seeds_are_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ACCURACY, "periodic", [0.80, 0.82, 0.805])
    said = costs(tmp_path / "three")["pareto-bytes"].said
    assert "periodic is behind partial (0.17 points of accuracy, a tie as far as 3 seeds" in said
    one = costs(tmp_path / "one", seeds=1)["pareto-bytes"]
    assert "; one seed: not evidence)" in one.said
    assert one.note.endswith("one seed: not evidence")
    assert all(spot.ends is None for spot in one.spots)


def test_what_is_not_to_be_compared_has_no_front(tmp_path: Path) -> None:
    costs(tmp_path / "a")
    make(tmp_path / "a" / "open-seed0", finished=False, rich=False)
    assert of_results(grouped(gather([tmp_path / "a"]))) == []
    assert "pareto-seconds" not in costs(tmp_path / "b", seconds=None)
    costs(tmp_path / "c")
    path = tmp_path / "c" / "partial-seed0" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"judged_on": "validation"}))
    assert of_results(grouped(gather([tmp_path / "c"]))) == []


def test_the_page_shows_fronts(tmp_path: Path) -> None:
    costs(tmp_path)
    text = page(gather([tmp_path]))
    assert 'id="chart-pareto-bytes"' in text
    assert 'id="chart-pareto-seconds"' in text
    picture = draw(costs(tmp_path / "more")["pareto-bytes"])
    assert picture.count(" dot") == 16
    names = [line.split(">")[1].split("<")[0] for line in picture.splitlines() if "named" in line]
    assert names == ["partial", "synchronous", "slow", "periodic"], "those on the front come first"


def test_schemes_stand_at_their_price_and_side_by_side_only_where_they_would_hide_each_other() -> (
    None
):
    lone = {"far": (20.0, 90.0), "high": (1.0, 85.0)}
    same = {f"same-{place}": (1.0, 70.0) for place in range(20)}
    reached = {**lone, **same}
    spots = [Spot(place, name, *at) for place, (name, at) in enumerate(reached.items())]
    found = Costs("k", "t", "n", "MB", "%", list(reached), spots, spots[:1], "", log_x=True)
    axes = Axes((1, 20), (70, 90), "MB", log_x=True)
    told = re.findall(r'd="M([-\d.]+),[\d.]+h.01"><title>([\w-]+): ', draw(found))
    places = {name: float(x) for x, name in told}
    assert [places[name] for name in lone] == [
        pytest.approx(float(axes.across(price)), abs=0.1) for price, _ in lone.values()
    ]
    beside = [places[name] for name in same]
    assert len(set(beside)) == 20
    assert max(abs(x - float(axes.across(1))) for x in beside) < 15


def test_who_is_behind_one_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACCURACY, "slow", [0.5, 0.51, 0.52])
    assert costs(tmp_path / "many")["pareto-bytes"].said.endswith(
        "(20 MB, 91.00 %). periodic is behind partial (10.00 points of accuracy). slow is behind "
        "synchronous (40.00 points of accuracy)."
    )
    monkeypatch.setitem(ACCURACY, "synchronous", [0.6, 0.51, 0.52])
    assert costs(tmp_path / "one", seeds=1)["pareto-bytes"].said == (
        "On the front: partial (1 MB, 81.00 %). Behind partial: periodic (11.00 points of "
        "accuracy), synchronous (21.00 points of accuracy), slow (31.00 points of accuracy); "
        "one seed: not evidence."
    )


def test_intervals_are_said_to_be_of_three_seeds_where_some_have_fewer(tmp_path: Path) -> None:
    assert costs(tmp_path)["pareto-bytes"].note.endswith("; 95 % intervals of the means")
    for seed in (1, 2):
        shutil.rmtree(tmp_path / f"periodic-seed{seed}")
    found = {one.key: one for one in of_results(grouped(gather([tmp_path])))}
    assert found["pareto-bytes"].note.endswith("of the means where there are 3 seeds or more")


def test_units_are_those_that_a_person_reads() -> None:
    names = [unit_of_bytes(most).name for most in (0, 10, 5e5, 1e6, 9.9e8, 1e9, 5e13)]
    assert names == ["kB", "kB", "kB", "MB", "MB", "GB", "TB"]
    assert [unit_of_seconds(m).name for m in (0, 119, 121, 7000, 7201)] == [
        "seconds", "seconds", "minutes", "minutes", "hours",
    ]  # fmt: skip


def test_axes_place_values_inside_the_picture() -> None:
    for log in (False, True):
        axes = Axes((1.3, 25.3), (56.0, 70.0), "MB sent", log_x=log)
        x = [float(axes.across(value)) for value in (1.3, 5, 25.3)]
        assert 56 <= x[0] < x[1] < x[2] <= 618
        y = [float(axes.down(value)) for value in (56, 60, 70)]
        assert 260 >= y[0] > y[1] > y[2] >= 11.9
    last = Axes((1000, 1e7), (0, 1), "parameters", log_x=True).opened("")[-2]
    assert ">10,000,000<" in last
    assert 'x="590.0"' in last, "not beyond the edge"
    lone = Axes((0.0, 0.0), (0.5, 0.5), "MB sent")
    assert float(lone.across(0.0)) == pytest.approx(337)
