"""A metric from outside: one entry and one function, and it is measured, summed up and shown."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests import tasks
from tests.cli.program import RECIPE
from tests.together import together

import partavg
from partavg import build
from partavg.cli import main
from partavg.config_toml import parse
from partavg.core.plan import Plan
from partavg.metrics.metric import Metric
from partavg.metrics.moment import Moment
from partavg.metrics.table import METRICS, columns
from partavg.session import Diverged


def largest(moment: Moment) -> torch.Tensor | None:
    """The largest absolute parameter of all workers, every second step."""
    return moment.simulation.largest().max() if moment.due(2) else None


LARGEST = Metric(
    "largest", largest, "Largest parameter", "Of all workers", summary=("last", "peak"),
    column="largest", form=".3f", chart="log", progress="largest {:.2f}",
)  # fmt: skip


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "largest", LARGEST)


def test_it_is_measured_where_it_is_asked_for(tmp_path: Path) -> None:
    plain = tasks.run(tmp_path / "plain")
    before = [row.keys() for row in plain]
    run = tasks.run(tmp_path / "run", metrics={"extra": ["largest"]})
    rows = list(run)
    assert all("largest" not in keys for keys in before)
    assert [list(row) for row in rows[::2]] == [list(keys) for keys in before[::2]]
    assert [list(row) for row in rows[1::2]] == [[*keys, "largest"] for keys in before[1::2]]
    assert rows[-1]["largest"] == float(run._simulation.workers.params.abs().max())
    assert list(run.folder.rows()) == rows
    summary = run.folder.summary()
    assert summary["largest"] == rows[-1]["largest"]
    assert summary["peak_largest"] == max(row["largest"] for row in rows[1::2])
    assert "largest" not in plain.folder.summary()
    assert "extra" not in plain.folder.config_path.read_text()
    assert 'extra = ["largest"]' in run.folder.config_path.read_text()


def test_everything_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, the progress and the report of a comparison."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE)
    command = ["compare", "recipe.toml", "--schemes", "periodic,partial", "--out", "out"]
    done = CliRunner().invoke(main, [*command, "--set", 'metrics.extra=["largest"]'])
    assert done.exit_code == 0, done.output
    last = json.loads(Path("out/partial-seed0/summary.json").read_text())
    assert f"largest {last['largest']:.2f}" in re.search("partial: step 12/12, .*", done.output)[0]
    assert re.search(
        rf"partial .* {last['largest']:.3f} .* {last['peak_largest']:.3f}", done.output
    )
    page = Path("out/report.html").read_text()
    assert "<h3>Largest parameter</h3>" in page
    assert 'id="log-largest"' in page
    assert '<th scope="col">peak largest</th>' in page
    drawn = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["charts"]
    assert drawn["largest"]["lines"][0]["x"] == [2, 4, 6, 8, 10, 12]
    done = CliRunner().invoke(main, [*command, "--force"])
    assert "largest" not in done.output, "no empty columns"


def test_follow_measures_it(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(40, 4)
    y = (x[:, 0] > 0).long()
    simulation = partavg.Simulation(
        torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, (x, y), partavg.iid(y, 4, seed=0),
        schedule=partavg.Schedule.partial(2), lr=0.1, batch=5,
    )  # fmt: skip
    table = partavg.follow(simulation, 4, every=2, metrics=["largest"])
    assert table["largest"][-1] == float(simulation.workers.params.abs().max())
    assert f"largest {table['largest'][-1]:.2f}" in capsys.readouterr().out
    with pytest.raises(ValueError, match="metric 'largets' is not known: did you mean 'largest'"):
        partavg.follow(simulation, 8, metrics=["largets"])


def test_it_can_see_models_before_they_are_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(moment: Moment) -> torch.Tensor:
        return moment.columns_apart.sum()

    monkeypatch.setitem(METRICS, "apart", Metric("apart", apart, when="round"))
    measured = {"extra": ["apart"], "round_losses_every": 1}
    averaging = {"interval": 4, "parts": 1, "partition": "whole"}
    rows = list(tasks.run(tmp_path / "run", metrics=measured, averaging=averaging))
    assert [row["step"] for row in rows if "apart" in row] == [4, 8, 12]
    assert all(row["apart"] > 1e-3 > row["discrepancy"] for row in rows[3::4])


def measured(processes, folder: Path) -> list[dict]:
    METRICS["largest"] = LARGEST
    return list(tasks.run(folder, processes=processes, metrics={"extra": ["largest"]}))


@pytest.mark.slow
def test_all_ranks_measure_it(tmp_path: Path) -> None:
    alone = list(tasks.run(tmp_path / "alone", metrics={"extra": ["largest"]}))
    rows = together(2, tmp_path, measured, tmp_path / "ranks")
    assert rows[0] == rows[1]
    assert [row.keys() for row in rows[0]] == [row.keys() for row in alone]
    for ours, theirs in zip(rows[0][1::2], alone[1::2], strict=True):
        assert ours["largest"] == pytest.approx(theirs["largest"], rel=1e-5)


def test_a_value_that_is_not_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Metric("odd", lambda at: 1.0 if at.step < 3 else float("nan"))
    monkeypatch.setitem(METRICS, "odd", odd)
    run = tasks.run(tmp_path / "run", metrics={"extra": ["odd"]})
    with pytest.raises(Diverged, match="metric 'odd' is nan at step 3: it must be finite, or None"):
        list(run)


def test_mistakes_are_sentences() -> None:
    with pytest.raises(ValueError, match=r"metrics\.extra = 'larges' is not known: did you mean"):
        parse({"metrics": {"extra": ["larges"]}})
    with pytest.raises(ValueError, match="metric 'my metric' cannot name a column: use small"):
        Metric("my metric")
    with pytest.raises(ValueError, match="'x' cannot be summarized by 'best': use last, mean"):
        Metric("x", summary=("best",))
    config = tasks.config()
    bare = Moment(build.simulation(config, tasks.data(), build.device(config)), config.metrics, 1)
    with pytest.raises(ValueError, match="this moment has no record"):
        bare.record  # noqa: B018
    with pytest.raises(ValueError, match="this run has no test set"):
        bare.on_test  # noqa: B018


def test_the_columns_of_a_comparison() -> None:
    """Others than these only where a run measured them."""
    usual = [
        "accuracy %", "training loss", "mean discrepancy", "peak discrepancy", "MB sent",
        "messages sent", "seconds",
    ]  # fmt: skip
    assert [column.heading for column in columns([{"accuracy": 0.5}])] == usual
    assert [column.heading for column in columns([{}])] == usual[1:], "it cannot be measured"
    assert [column.heading for column in columns([{"accuracy": 0.5, "largest": 1.0}])] == [
        *usual[:2], "largest", *usual[2:],
    ]  # fmt: skip


def test_the_mean_loss_of_a_step_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tasks.run(tmp_path / "run", **tasks.PERMUTED)
    monkeypatch.setattr(Plan, "__post_init__", lambda self: pytest.fail("a plan was built"))
    asked = []
    mean_loss = run._simulation.mean_loss
    monkeypatch.setattr(
        run._simulation, "mean_loss", lambda losses: asked.append(losses) or mean_loss(losses)
    )
    assert len(list(run)) == len(asked) == 12
    assert mean_loss(asked[-1]) is mean_loss(asked[-1]), "also where an interval adapts to it"


@pytest.mark.parametrize(
    ("measure", "more", "problem"),
    [
        (lambda at: 1 / 0, {}, "failed at step 1 with ZeroDivisionError: division by zero"),
        (lambda: 1.0, {}, "takes 0 positional arguments"),
        (lambda at: "much", {}, "failed at step 1 with TypeError"),
        (lambda at: {"a": 1.0}, {}, "failed at step 1 with TypeError"),
        (lambda at: [[1.0], [2.0, 3.0]], {}, "failed at step 1 with ValueError"),
        (lambda at: torch.ones(2, 2), {}, "it gave a tensor [2, 2]"),
        (lambda at: torch.tensor(1j), {}, "a number or a list is wanted"),
        (lambda at: [1.0, 2.0], {"column": "odd"}, "it gave several numbers"),
        (lambda at: [1.0, 2.0], {"summary": ("mean",)}, "it gave several numbers"),
        (lambda at: float("nan"), {"when": "end"}, "it gave nan: it must be finite"),
    ],
)
def test_what_is_no_number_ends_a_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure, more: dict, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE)
    command = ["run", "recipe.toml", "--out", "out", "--set", 'metrics.extra=["odd"]']
    monkeypatch.setitem(METRICS, "odd", Metric("odd", measure, **more))
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2, done.output
    assert "metric 'odd' failed at step" in done.output
    assert problem in done.output
    assert "--out out --resume" in done.output
    monkeypatch.setitem(METRICS, "odd", Metric("odd", lambda at: 1.0))
    done = CliRunner().invoke(main, [*command, "--resume"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "value", [torch.tensor(2.0).half(), np.float32(2), True, (2.0, 3.0), np.ones(2), torch.ones(2)]
)
def test_numbers_of_any_kind_are_written(tmp_path: Path, monkeypatch, value) -> None:
    monkeypatch.setitem(METRICS, "odd", Metric("odd", lambda at: value))
    run = tasks.run(tmp_path / "run", metrics={"extra": ["odd"]})
    written = [row["odd"] for row in run]
    assert written[0] == np.asarray(value).tolist()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"when": "always"}, "has when 'always': use step, round, end"),
        ({"kind": "price"}, "has kind 'price': use result"),
        ({"chart": "pie"}, "has chart 'pie': use none"),
        ({"measure": 3.0}, "measures 3.0: give a function"),
        ({"form": "zz"}, "cannot be shown as 'zz'"),
        ({"progress": "{a}"}, "cannot be shown as"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(given: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Metric("odd", **given)


@pytest.mark.parametrize("key", ["step", "steps", "scale", "ranks", "peak_discrepancy"])
def test_a_key_that_means_something_else_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"would write '{key}', which is something else"):
        partavg.register("metric", key, Metric(key, largest))


def test_our_own_metrics_are_not_extra() -> None:
    with pytest.raises(ValueError, match=r"metrics\.extra = 'discrepancy' comes with the package"):
        parse({"metrics": {"extra": ["discrepancy"]}})
