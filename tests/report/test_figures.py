import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.report.folders import comparison, make

from partavg.cli import main
from partavg.report import figures
from partavg.report.charts import Chart, Line
from partavg.report.curves import Curve
from partavg.report.figures import write_figures
from partavg.report.pareto import of_results
from partavg.report.runs import gather, grouped

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("kind", ["pdf", "svg"])
def test_every_figure_is_written(tmp_path: Path, kind: str) -> None:
    comparison(tmp_path / "runs", seeds=1)
    groups = grouped(gather([tmp_path / "runs"]))
    written = write_figures(tmp_path / "figures", groups, kind)
    assert sorted(path.stem for path in written) == [
        "accuracy", "accuracy_bytes", "discrepancy", "discrepancy_parts", "discrepancy_windows",
        "loss", "pareto_bytes", "pareto_seconds", "phases", "round_losses", "split",
        "test_loss",
    ]  # fmt: skip
    assert {path.suffix for path in written} == {f".{kind}"}
    first = written[0].read_bytes()
    if kind == "pdf":
        assert first.startswith(b"%PDF")
        assert b"/FontFile2" in first, "fonts are embedded, as TrueType"
    else:
        assert b"<text" in first, "text stays text"
    again = write_figures(tmp_path / "again", groups, kind)
    assert again[0].read_bytes() == first, "the same runs give the same bytes"


def test_names_are_no_formulas(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "$_{x")
    make(tmp_path / "runs" / "_y")
    written = write_figures(tmp_path, grouped(gather([tmp_path / "runs"])), "svg")
    text = next(path for path in written if path.stem == "loss").read_text()
    assert "$_{x" in text
    assert "_y" in text


def test_runs_without_metrics(tmp_path: Path) -> None:
    path = make(tmp_path / "run", rich=False)
    (path / "metrics.jsonl").unlink()
    (path / "split.json").unlink()
    with pytest.raises(ValueError, match="no metrics to draw"):
        write_figures(tmp_path / "figures", grouped(gather([path])), "pdf")


def test_without_matplotlib_a_sentence_says_how_to_install_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    make(tmp_path / "run")
    done = CliRunner().invoke(main, ["report", "run", "--figures", "figures"])
    assert done.exit_code == 2
    assert done.stderr == (
        "partavg: figures need matplotlib, which is not installed: pip install 'partavg[figures]'\n"
    )
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("values", "scale"),
    [((20.0, 1, 1, 1), "log"), ((4.0, 2, 1), "linear"), ((20.0, 1, 0), "linear")],
)
def test_one_large_value_does_not_flatten_a_chart(values: tuple[float, ...], scale: str) -> None:
    curve = Curve(np.arange(len(values)), np.array(values))
    chart = Chart("loss", "Loss", "", "step", "loss", [Line(0, None, curve)], log=True)
    assert figures._lines([chart], ["run"]).axes[0].get_yscale() == scale


def test_one_evaluation_is_a_bar_and_traffic_may_be_logarithmic(tmp_path: Path) -> None:
    for name, sends in (("partial", 1000), ("synchronous", 20_000)):
        make(tmp_path / "once" / name, steps=8, interval=10, sends=sends)
        make(tmp_path / "often" / name, sends=sends)
    once = write_figures(tmp_path / "a", grouped(gather([tmp_path / "once"])), "svg")
    assert "accuracy" in {path.stem for path in once}
    text = (tmp_path / "a" / "accuracy.svg").read_text()
    assert ">synchronous<" in text
    assert ">step<" not in text
    often = write_figures(tmp_path / "b", grouped(gather([tmp_path / "often"])), "svg")
    assert "accuracy_bytes" in {path.stem for path in often}
    text = (tmp_path / "b" / "accuracy_bytes.svg").read_text()
    assert "logarithmic" in text
    numbers = re.findall(r">([\d.]+)<", text.partition("logarithmic")[0])
    assert {"0.02", "0.05", "0.1"} <= set(numbers), "as on the page, and no powers of ten"


def test_many_schemes_are_named_on_the_front_and_long_names_have_room(tmp_path: Path) -> None:
    for place in range(12):
        make(tmp_path / "many" / f"a-scheme-with-a-long-name-{place}", sends=100 * place + 100)
    for name in ("a-scheme-with-a-long-name-a", "a-scheme-with-a-long-name-b", "c", "d"):
        make(tmp_path / "few" / name, parts=1)
    for folder, legend in (("many", 0), ("few", 1)):
        (paid, *_) = of_results(grouped(gather([tmp_path / folder])))
        figure = figures._costs(paid)
        assert len(figure.legends) == legend
        low, high = figure.axes[0].get_ylim()
        assert all(low < spot.y < high for spot in paid.spots)
        for inside in figure.legends:
            figure.canvas.draw()
            box = inside.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
        assert bool(figure.axes[0].texts) is (not legend)
