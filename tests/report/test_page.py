"""What is on the page of a report, without a browser."""

import json
import re
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest
from tests import tasks
from tests.report.folders import comparison, make

from partavg.comparison import CLIENTS, PlannedRun, planned_runs, results
from partavg.folder import RunFolder
from partavg.report.axes import ticks
from partavg.report.chart import draw
from partavg.report.charts import Chart, Line, charts
from partavg.report.curves import Curve, mean, thinned
from partavg.report.heat import heat_maps
from partavg.report.page import page
from partavg.report.runs import columns, gather, grouped, of_entries
from partavg.report.words import scheme, task
from partavg.verdict import verdict


def data_of(text: str) -> dict:
    """What the page's script draws from."""
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> list[PlannedRun]:
    """A comparison that really ran."""
    out = tmp_path_factory.mktemp("comparison")
    measured = {"discrepancy_parts": True, "round_losses_every": 1, "timings": True}
    entries = planned_runs(tasks.recipe(metrics=measured), ["periodic", "partial"], 2, out)
    for entry in entries:
        run = tasks.Run(entry.config, tasks.data(), entry.folder, resume=False, force=False)
        for _ in run:
            pass
    return entries


def test_a_real_comparison_has_everything(finished: list[PlannedRun]) -> None:
    text = page(of_entries(finished))
    assert verdict(results(finished)) in unescape(text)
    assert "4 workers train mlp on fashion_subset (dirichlet split, alpha 1)" in text
    headings = re.findall(r"<h[23]>(.*?)</h[23]>", text)
    for heading in (
        "Results", "Training loss", "Accuracy", "Accuracy against traffic", "Test loss",
        "Discrepancy", "Global against smallest local loss", "Discrepancy of each part",
        "Time per phase", "Labels of each worker", "Settings", "Environment",
    ):  # fmt: skip
        assert heading in headings
    assert " ± " in text
    assert '<tr class="marked"><th scope="row">averaging.<wbr>parts' in text
    assert '<tr><th scope="row">training.<wbr>seed</th><td>0, 1</td>' in text, (
        "alike in all schemes"
    )
    assert data_of(text)["groups"] == [
        {"name": name, "runs": [f"{name}, seed 0", f"{name}, seed 1"]}
        for name in ("periodic", "partial")
    ]


def test_the_labels_of_each_worker_are_those_of_the_split(finished: list[PlannedRun]) -> None:
    for entry in finished:
        counts = entry.folder.split()
        assert len(counts) == 4
        assert np.sum(counts, axis=0).tolist() == [40, 40, 40]


def test_a_page_fetches_nothing(finished: list[PlannedRun]) -> None:
    text = page(of_entries(finished))
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in unescape(text)
    assert "connect-src" not in text
    assert "connect-src 'self'" in unescape(page(of_entries(finished), refresh=3))


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>&amp;",
    "\u202eevil\u2028",
    "long" * 100,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_settings_are_escaped(tmp_path: Path, name: str) -> None:
    make(tmp_path / "one")
    config = (tmp_path / "one" / "config.toml").read_text()
    (tmp_path / "one" / "config.toml").write_text(
        config.replace('"resnet20"', json.dumps(name)), encoding="utf-8"
    )
    runs = [replace(run, name=name, group=name) for run in gather([tmp_path])]
    text = page(runs)
    assert data_of(text)["groups"] == [{"name": name, "runs": [name]}]
    assert text.count("<script") == 2
    assert "<img" not in text
    assert "<b>&amp;" not in text


def test_runs_are_found_named_and_grouped(tmp_path: Path) -> None:
    comparison(tmp_path / "runs" / "compare-1")
    make(tmp_path / "runs" / "alone", seed=9, finished=False)
    (tmp_path / "runs" / "recipe").mkdir()
    (tmp_path / "runs" / "recipe" / "config.toml").write_text("")  # a recipe, not a run
    groups = grouped(gather([tmp_path / "runs" / "compare-1"]))
    assert [(g.name, len(g.runs), g.status) for g in groups] == [
        ("periodic", 2, ""),
        ("partial", 2, ""),
    ], "the usual schemes have one order, and so one color, on every page"
    groups = grouped(gather([tmp_path / "runs", tmp_path / "runs" / "alone"]))
    assert {(g.name, len(g.runs)) for g in groups} == {
        ("compare-1/partial", 2), ("compare-1/periodic", 2), ("alone", 1),
    }  # fmt: skip
    assert grouped(gather([tmp_path / "runs" / "alone"]))[0].status == "unfinished, step 100"
    with pytest.raises(ValueError, match=r"holds no run: name run folders"):
        gather([tmp_path / "runs" / "recipe"])


def test_runs_that_differ_in_more_than_the_seed_are_not_one_scheme(tmp_path: Path) -> None:
    make(tmp_path / "a-seed0", seed=0)
    make(tmp_path / "a-seed1", seed=1, interval=20)
    assert [g.name for g in grouped(gather([tmp_path]))] == ["a-seed0", "a-seed1"]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = make(tmp_path / "run", steps=20, finished=False)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')
    run = gather([path])[0]
    assert run.step == 20
    assert "unfinished, step 20" in page([run])
    (path / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: line 2 is no row"):
        gather([path])
    (path / "metrics.jsonl").unlink()
    assert "unfinished, step 0" in page(gather([path])), "a run that has just begun"


def test_values_that_are_not_finite_are_left_out() -> None:
    found = columns([{"step": 1, "loss": None}, {"step": 2, "loss": 1.0, "away": {}},
                     {"step": 3, "loss": float("nan")}])  # fmt: skip
    assert found.keys() == {"loss"}
    assert found["loss"].steps.tolist() == [2]


def test_windows_show_a_few_rounds_early_and_in_the_middle(tmp_path: Path) -> None:
    comparison(tmp_path, steps=400)
    found = {chart.key: chart for chart in charts(grouped(gather([tmp_path])))}
    early, middle = found["discrepancy_early"], found["discrepancy_middle"]
    assert early.note == "Steps 0 to 60: 6 rounds of 10 steps"
    assert middle.note == "Steps 160 to 220: 6 rounds of 10 steps"
    assert all(len(line.curve.x) == 60 for line in early.lines)
    short = charts(grouped(gather([make(tmp_path / "short", steps=100)])))
    notes = [chart.note for chart in short if chart.key.startswith("discrepancy_")]
    assert notes[:2] == [
        "Steps 0 to 40: 4 rounds of 10 steps",
        "Steps 40 to 80: 4 rounds of 10 steps",
    ]
    bytes_against = found["accuracy_bytes"].lines[0].curve
    assert bytes_against.x[-1] == pytest.approx(400)
    assert found["accuracy_bytes"].x_label == "kB sent"
    assert found["round_losses"].second == "best local model"


def test_the_mean_of_seeds() -> None:
    one, other = Curve(np.array([1.0, 2.0]), np.array([1.0, 3.0])), Curve(*np.array([[1.0], [5.0]]))
    both = mean([one, other])
    assert both.x.tolist() == [1, 2]
    assert both.y.tolist() == [3, 3]
    assert mean([one, Curve(one.x, one.y + 2)]).y.tolist() == [2, 4]


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    x = np.arange(100_000.0)
    curve = Curve(x, x % 7)
    few = thinned(curve, 1000)
    assert len(few.x) <= 1002
    assert (np.diff(few.x) > 0).all()
    assert few.x[[0, -1]].tolist() == [0, 99_999]
    assert {0.0, 6.0} <= set(few.y.tolist())
    spike = thinned(Curve(x, (x == 51_234).astype(float)), 100)
    assert spike.y.max() == 1
    assert thinned(few, 5000) is few


def test_pictures() -> None:
    flat = Chart("k", "flat <", "", "step", "", [Line(0, 0, Curve(np.ones(1), np.ones(1)))])
    svg = draw(flat)
    assert svg.startswith("<svg")
    assert "flat &lt;" in svg
    assert "nan" not in svg
    assert "h.01" in svg, "a point alone is a dot"
    assert ticks(0.2, 0.9) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(1e-14, 3e-14) == pytest.approx([1e-14, 1.5e-14, 2e-14, 2.5e-14, 3e-14])


def test_heat_maps_are_bounded(tmp_path: Path) -> None:
    make(tmp_path / "run", steps=1000, interval=200, parts=200)
    (one,), left_out = heat_maps(grouped(gather([tmp_path])))
    assert left_out == 0
    assert one.parts == 200
    assert one.values.shape == (64, 143), "seven steps in each"
    assert np.isfinite(one.values).all()


def test_maps_that_are_left_out_are_counted(tmp_path: Path) -> None:
    make(tmp_path / "run", steps=1000, interval=200, parts=200)
    run = gather([tmp_path])[0]
    text = page([replace(run, name=f"run {i}", group=f"run {i}") for i in range(8)])
    assert text.count("data-heat=") == 6
    assert "2 more schemes: report fewer at a time" in text


def test_many_long_runs_stay_small(tmp_path: Path) -> None:
    make(tmp_path / "run", steps=10_000, rich=False)
    run = gather([tmp_path])[0]
    text = page([replace(run, name=f"run {i}", group=f"run {i}") for i in range(100)])
    assert len(text.encode()) < 8e6
    lines = data_of(text)["charts"]["loss"]["lines"]
    assert len(lines) == 100
    assert all(len(line["x"]) >= 300 for line in lines)


def test_what_was_run_in_words(tmp_path: Path) -> None:
    settings = {"averaging.interval": 8, "solver.name": "scaffold"}
    assert scheme({**settings, "averaging.parts": 1}) == (
        "the whole model after every 8 steps; scaffold"
    )
    assert scheme({**settings, "averaging.parts": 4}) == (
        "one of 4 parts after every 2 steps, so each part every 8 steps; scaffold"
    )
    assert scheme({"averaging.interval": 1, "averaging.parts": 1}) == (
        "the whole model after every step; sgd"
    )
    some = {"training.workers": 3, "training.steps": 9}
    assert task({**some, "flower.job": "mine"}) == (
        "3 clients of Flower train together (mine) for 9 steps"
    )
    assert task({**some, "model.name": "Net"}) == "3 workers train Net for 9 steps"
    given = {"model.name": "Net", "data.name": "given", "data.samples": 80, "split.name": "given"}
    assert task({**some, **given}) == "3 workers train Net on 80 samples for 9 steps"
    named = {"model.name": "code/own.py:Net", "data.name": "a.b:points", "split.name": "o.py:mine"}
    assert task({**some, **named}) == "3 workers train Net on points (mine split) for 9 steps"
    assert scheme({"averaging.local": ["head.*"], "solver.name": "code/own.py:Mine"}) == (
        "the whole model after every step, and each client keeps head.* to itself; Mine"
    )


def test_a_run_without_metrics_has_a_page(tmp_path: Path) -> None:
    """The results that come with the repository have none."""
    path = make(tmp_path / "run")
    (path / "metrics.jsonl").unlink()
    (path / "split.json").unlink()
    text = page(gather([path]))
    assert "<h2>Results</h2>" in text
    assert "<figure" not in text
    assert "Curves" not in text
    assert RunFolder(path).split() is None


def test_an_empty_page_waits() -> None:
    assert "No runs yet" in page([], refresh=1)


def traffic(folder: Path) -> Chart:
    return next(
        chart for chart in charts(grouped(gather([folder]))) if chart.key == "accuracy_bytes"
    )


def test_traffic_that_is_far_apart_has_a_logarithmic_axis(tmp_path: Path) -> None:
    make(tmp_path / "partial")
    make(tmp_path / "double", sends=2000)
    assert not traffic(tmp_path).log_x
    make(tmp_path / "synchronous", sends=20_000)
    chart = traffic(tmp_path)
    assert chart.log_x
    assert "logarithmic" in chart.x_label
    widths = []
    for path in re.findall(r'<path class="line [^"]*" d="M([^"]*)"', draw(chart)):
        places = [float(point.partition(",")[0]) for point in path.split()]
        widths.append(max(places) - min(places))
    assert min(widths) > 0.95 * max(widths), "tenfold traffic takes as much room for everybody"
    assert data_of(page(gather([tmp_path])))["charts"]["accuracy_bytes"]["logX"] is True


def test_what_is_sent_before_anything_is_has_no_place_on_a_logarithmic_axis() -> None:
    curve = Curve(np.array([0.0, 1.0, 100.0]), np.array([1.0, 2.0, 3.0]))
    drawn = Chart("a", "b", "c", "x", "y", [Line(0, 0, curve.within(1e-12, np.inf))], log_x=True)
    assert "nan" not in draw(drawn)
    assert "inf" not in draw(drawn)


def test_one_evaluation_is_a_table_and_no_dot(tmp_path: Path) -> None:
    comparison(tmp_path, steps=8, interval=10)
    text = page(gather([tmp_path]))
    figure = re.search(r'<figure id="chart-accuracy">(.*?)</figure>', text, re.DOTALL)[1]
    assert "<svg" not in figure
    assert "Measured once" in figure
    assert re.search(r">partial</th><td>8</td><td>89.22 %</td>", figure)
    assert "accuracy" not in data_of(text)["charts"]
    assert '<figure id="chart-loss" data-chart="loss">' in text


def test_early_ends_and_whose_results_they_are_are_said(tmp_path: Path) -> None:
    for seed in range(2):
        path = make(tmp_path / f"fedper-seed{seed}", seed=seed, rich=False) / "summary.json"
        before = page(gather([tmp_path]))
        assert "stopped early" not in before
        assert escape(CLIENTS) not in before
        ended = {"stopped_at": 60 + seed, "clients_accuracy": 0.9}
        path.write_text(json.dumps({**json.loads(path.read_text()), **(ended if seed else {})}))
    text = page(gather([tmp_path]))
    assert "2 seeds, 1 stopped early after step 61</li>" in text
    assert escape(CLIENTS) in text
