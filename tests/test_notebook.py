"""Runs in a notebook: tables, figures, progress, and the example executed by a real kernel."""

import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from tests.limits import seconds
from torch import nn
from torch.nn import functional as F

import partavg
from partavg import notebook
from partavg.notebook import Results, Table

ROWS = [
    {"step": step, "loss": 1 / step, **({"accuracy": step / 100} if step % 5 == 0 else {})}
    for step in range(1, 41)
]


def test_columns_are_arrays() -> None:
    table = Table(ROWS)
    assert len(table) == 40
    assert table.columns == ("step", "loss", "accuracy")
    assert table["step"].dtype == np.int64
    assert np.isnan(table["accuracy"]).sum() == 32
    assert Table([{"step": 1, "parts": [1.0, 2.0]}])["parts"][0] == [1.0, 2.0]
    with pytest.raises(KeyError, match="'speed' was not measured: there are step, loss, accuracy"):
        table["speed"]


def test_a_table_shows_its_ends() -> None:
    lines = repr(Table(ROWS)).splitlines()
    assert len(lines) == 1 + 5 + 1 + 5
    assert lines[0].split() == ["step", "loss", "accuracy"]
    html = Table(ROWS)._repr_html_()
    assert ElementTree.fromstring(f"<a>{html}</a>").findall(".//th")
    assert "40 rows" in html


def curves(page: ElementTree.Element) -> int:
    """How many curves a page shows, those of legends left out."""
    lines = [each for each in page.iter() if "line" in each.get("class", "").split()]
    legends = [each for caption in page.iter("figcaption") for each in caption.iter()]
    return sum(line not in legends for line in lines)


def test_figures() -> None:
    ours, theirs = Table(ROWS, "<partial>"), Table(ROWS[:20], "periodic")
    html = ours.figure("accuracy", theirs)._repr_html_()
    page = ElementTree.fromstring(html)
    assert curves(page) == 2
    assert "&lt;partial&gt;" in html
    broken = Table([{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 1.0}])
    assert "nan" not in broken.figure("loss").html
    with pytest.raises(KeyError, match="was not measured"):
        ours.figure("speed")


def test_to_pandas_needs_pandas_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pandas:
        @staticmethod
        def DataFrame(rows: object, columns: object) -> object:  # noqa: N802
            return rows, columns

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert Table(ROWS).to_pandas() == (ROWS, ["step", "loss", "accuracy"])


def test_load_run(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(ValueError, match="mine holds no run: name a run folder"):
        partavg.load_run(folder)
    (folder / "config.toml").write_text("[averaging]\ninterval = 4\n")
    (folder / "metrics.jsonl").write_text(json.dumps(ROWS[0]) + "\n" + '{"step": 2, "lo')
    run = partavg.load_run(str(folder))
    assert run.config["averaging"]["interval"] == 4
    assert run.metrics.rows == ROWS[:1], "a line in the making is left out"
    assert run.summary == {}
    assert "not finished" in repr(run)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "summary.json").write_text('{"accuracy": 0.4, "timings": {"data": 1.0}}')
    run = partavg.load_run(folder)
    assert run.summary["accuracy"] == 0.4
    assert run.metrics.name == "mine"
    page = ElementTree.fromstring(run._repr_html_())
    assert curves(page) == 2, "loss and accuracy"
    assert isinstance(run, Results)
    with pytest.raises(ValueError, match="holds no run: name one of its folders, mine"):
        partavg.load_run(tmp_path)


def simulation() -> partavg.Simulation:
    torch.manual_seed(0)
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    split = partavg.iid(y, workers=4, seed=0)
    schedule = partavg.Schedule.partial(2)
    return partavg.Simulation(
        nn.Linear(4, 2), F.cross_entropy, (x, y), split, schedule=schedule, lr=0.1, batch=5
    )


def test_follow(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(20, 4)
    test = (x, (x[:, 0] > 0).long())
    trained = simulation()
    table = partavg.follow(trained, 25, test=test, every=10, name="mine")
    assert table["loss"].dtype == float
    assert table["step"].tolist() == [10, 20, 25]
    assert {"loss", "discrepancy", "accuracy", "bytes", "messages"} <= set(table.columns)
    assert "mine: step 25/25, loss" in capsys.readouterr().out
    more = partavg.follow(trained, 30)
    assert more["step"].tolist() == [30]
    assert "accuracy" not in more.columns
    plain = simulation()
    for _ in plain.train(30):
        pass
    assert torch.equal(plain.workers.params, trained.workers.params), "looking changes nothing"
    with pytest.raises(ValueError, match="every = 0 is no whole number from 1"):
        partavg.follow(trained, 40, every=0)


def test_only_a_kernel_is_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not notebook._in_notebook()


@pytest.mark.slow
def test_the_example_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    example = Path(__file__).parent.parent / "examples" / "notebook.ipynb"
    cells = nbformat.read(example, as_version=4)
    assert not any(cell.get("outputs") for cell in cells.cells), "kept without outputs"
    limits = {"timeout": seconds(), "startup_timeout": seconds()}
    client = nbclient.NotebookClient(
        cells, **limits, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [cell.outputs for cell in cells.cells if cell.cell_type == "code"]
    shown = [str(out.get("data", {}).get("text/html", "")) for each in outputs for out in each]
    figures = [html for html in shown if "<svg" in html]
    assert len(figures) == 4, "two that grew in place, one comparison, one run"
    assert '<progress max="120" value="120">' in figures[0], "the last of many pictures"
    assert any("<td>120</td>" in html for html in shown), "a table"
    assert outputs[-1][0]["data"]["text/plain"].startswith("(0.")


def test_what_was_asked_for_is_drawn(tmp_path: Path) -> None:
    """Also where there is no accuracy, as of a regression."""
    x = torch.randn(40, 3)
    simulation = partavg.Simulation(
        torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, (x, x[:, :1]),
        [range(20), range(20, 40)], schedule=partavg.Schedule.partial(2), lr=0.1,
    )  # fmt: skip
    out = tmp_path / "run"
    partavg.follow(simulation, 6, every=2, test=(x, x[:, :1]), metrics=["mae"], out=out)
    drawn = re.findall(r"<figcaption><b>(\w+)</b>", partavg.load_run(out)._repr_html_())
    assert drawn == ["loss", "test_loss", "mae", "discrepancy"]
