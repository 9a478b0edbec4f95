"""Metrics that a recipe lists: with options, in every table and chart, without their code too."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests import tasks
from tests.cli.program import RECIPE
from tests.outside import names_restored
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.cli import main
from partavg.config import Component, Metrics
from partavg.config_toml import dump, parse
from partavg.data.samples import Samples
from partavg.metrics.meter import Meter
from partavg.metrics.metric import Metric
from partavg.metrics.table import METRICS, main_metric
from partavg.recipes.files import read
from partavg.report.runs import gather

LISTED = """[metrics]
extra = ["brier", {name = "top_k", k = 3}, {name = "top_k", key = "top_2", k = 2}]
evaluate_every = 6
"""


def brier(outputs: Tensor, targets: Tensor, *, half: bool = False) -> tuple[Tensor, int]:
    """The squared distance of probabilities from the truth."""
    wrong = outputs.softmax(1) - F.one_hot(targets, outputs.shape[1])
    return wrong.square().sum() / (2 if half else 1), len(targets)


def partavg_does(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exc_info)
    assert "Traceback" not in done.output
    return done.output


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.replace("[metrics]\nevaluate_every = 6\n", LISTED))
    return path


def test_they_are_everywhere(recipe: Path) -> None:
    with names_restored():
        partavg.register("metric", "brier", brier)
        said = partavg_does("compare", recipe, "--schemes", "periodic,partial", "--out", "both")
    lines = Path("both/partial-seed0/metrics.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    assert [row["step"] for row in rows if "brier" in row] == [6, 12]
    last = json.loads(Path("both/partial-seed0/summary.json").read_text())
    assert last["brier"] == rows[-1]["brier"]
    assert last["accuracy"] < last["top_2"] < last["top_k"] < 1
    progress = re.search("partial: step 12/12, .*", said)[0]
    assert f"brier {last['brier']:.4g}" in progress
    assert f"top_2 {100 * last['top_2']:.1f}%" in progress
    assert f"{100 * last['top_k']:.2f}" in said
    without_code = partavg_does("report", "both", "--latex", "t.tex", "--csv", "t.csv")
    assert "report.html" in without_code
    page = Path("both/report.html").read_text()
    for heading in ("brier", "top-3 %", "top_2"):
        assert f'<th scope="col">{heading}</th>' in page
    assert "<h3>Top-3 accuracy</h3>" in page
    assert "<h3>brier</h3>" in page
    assert r"top-3 \%" in Path("t.tex").read_text()
    assert ",top_k,top_k_deviation" in Path("t.csv").read_text().splitlines()[0]
    drawn = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["charts"]
    assert drawn["brier"]["lines"][0]["x"] == [6, 12]


def test_their_values_are_those_of_the_averaged_model(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", metrics={"extra": [{"name": "top_k", "k": 2}]})
    rows = list(run)
    assert [("top_k" in row) for row in rows] == [("accuracy" in row) for row in rows]
    inputs, targets = tasks.data().test
    with torch.no_grad():
        outputs = run._simulation.consensus()(inputs)
    best = outputs.topk(2).indices
    assert rows[-1]["top_k"] == float((best == targets[:, None]).any(1).double().mean())
    resumed = tasks.run(tmp_path / "again", metrics={"extra": [{"name": "top_k", "k": 2}]})
    assert tasks.finish(resumed)["metrics"] == (tmp_path / "run/metrics.jsonl").read_bytes()


def test_an_unfinished_run_is_shown_by_what_it_says(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", metrics={"extra": [{"name": "top_k", "k": 2}]})
    for row in run:
        if row["step"] == 6:
            break
    (shown,) = gather([tmp_path / "run"])
    assert [metric.column for metric in shown.metrics] == ["top-2 %"]
    assert shown.metrics[0].measure is None
    for damage in ("[]", '{"top_k": 3}', '{"top_k": {"form": "99999999f"}}', '{"A b": {}}', "{"):
        (tmp_path / "run/metrics.json").write_text(damage)
        with pytest.raises(ValueError, match=r"metrics\.json is damaged"):
            gather([tmp_path / "run"])


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ('["topk"]', "metrics.extra = 'topk' is not known: did you mean 'top_k'?"),
        ('[{name = "top_k", q = 2}]', "unknown key 'metrics.extra.top_k.q'"),
        (
            '[{name = "top_k", k = "many"}]',
            'metrics.extra.top_k.k = "many": input should be a valid int',
        ),
        ('[{name = "top_k", k = 0}]', "metrics.extra.top_k.k = 0: input should be greater than"),
        ('[{name = "f1", average = "best"}]', "input should be 'micro' or 'macro'"),
        ("[{k = 3}]", "without a name: give it one"),
        ("[3]", "metrics.extra = [3]: input should be a name"),
        ('"top_k"', "metrics.extra = "),
        ('["top_k", "top_k"]', "metric 'top_k' is asked for twice: give one of them another key"),
        ('[{name = "top_k", key = "loss"}]', "metric 'loss' would write 'loss'"),
        ('[{name = "top_k", key = "My K"}]', "metric 'My K' cannot name a column"),
        ('["loss"]', "metrics.extra = 'loss' comes with the package"),
        ('[{name = "top_k", k = 10}]', "is among the 10 largest of 10 outputs: use a smaller k"),
        ('["f1"]', "metric 'f1' cannot be measured: outputs [4, 10] and targets [4] have"),
    ],
)
def test_mistakes_are_sentences_before_anything_is_written(
    recipe: Path, listed: str, problem: str
) -> None:
    said = partavg_does("run", recipe, "--set", f"metrics.extra={listed}", "--out", "out", code=2)
    assert problem in said
    assert not Path("out").exists()


def test_a_config_is_read_back_as_it_was_written() -> None:
    listed = ["accuracy", {"name": "top_k", "key": "third", "k": 3}, "mae"]
    config = parse({"metrics": {"extra": listed}})
    assert config.metrics.extra == (
        Component("accuracy", {"axis": None, "ignore_index": -100}),
        Component("top_k", {"key": "third", "k": 3, "axis": None, "ignore_index": -100}),
        Component("mae"),
    )
    assert parse(tomllib.loads(dump(config))) == config
    assert '"mae"]' in dump(config)


class Net(nn.Module):
    """Predicts numbers of samples [n, 5]."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def regression(**more: Any) -> partavg.Simulation:
    x = torch.randn(60, 5)
    return partavg.Simulation(
        Net(), F.mse_loss, (x, x.sum(1, keepdim=True)), list(torch.arange(60).view(4, 15)),
        schedule=partavg.Schedule.partial(2), lr=0.05, batch=5, **more,
    )  # fmt: skip


def test_a_regression_has_the_metrics_that_it_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    simulation = regression()
    x = torch.randn(20, 5)
    test = x, x.sum(1, keepdim=True)
    table = partavg.follow(simulation, 4, every=2, test=test, metrics=["mae", partavg.metrics.mse])
    assert "accuracy" not in table.columns
    assert table["mse"] == pytest.approx(table["test_loss"])
    assert f"MAE {table['mae'][-1]:.4g}" in capsys.readouterr().out

    def worst(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        return ((outputs - targets).abs() > 1).sum(), len(targets)

    table = partavg.follow(simulation, 6, every=2, test=test, metrics=[worst])
    assert table["worst"][-1] == simulation.evaluate(test, [worst]).metrics["worst"]
    with pytest.raises(ValueError, match="metric 'accuracy' cannot be measured: targets are float"):
        partavg.follow(simulation, 8, test=test, metrics=["accuracy"])
    assert simulation.workers.step == 6, "said at the start"


def test_the_accuracy_of_local_models_must_be_measurable() -> None:
    test = Samples(torch.randn(4, 5), torch.randn(4, 1))
    with pytest.raises(ValueError, match="metric 'accuracy' cannot be measured"):
        Meter(regression(), Metrics(local_accuracy=("mean",)), 4, test=test)


def test_what_fails_later_ends_a_run_with_a_sentence(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def picky(outputs: Tensor, targets: Tensor) -> Any:
        if len(targets) > 4:
            return None if outputs.shape[1] == 10 else 1 / 0
        return 1, 1

    monkeypatch.setitem(METRICS, "picky", picky)
    words = ("run", recipe, "--set", 'metrics.extra=["picky"]', "--out", "out")
    said = partavg_does(*words, code=2)
    assert "metric 'picky' cannot be measured: it gave None for outputs [500, 10]" in said
    assert "at step 6" in said
    assert "--out out --resume" in said


def test_the_main_metric() -> None:
    own = Metric("own", better="lower")
    known = [{"accuracy": 0.5, "own": 1.0, "test_loss": 1.0}]
    assert main_metric(known).key == "accuracy"
    assert main_metric(known, [Metric("mute"), own]).key == "own"
    assert main_metric([*known, {"accuracy": 0.2}], [own]).key == "accuracy"
    assert main_metric([{"test_loss": 1.0}]).key == "test_loss"
    assert main_metric([]) is None
    assert main_metric([{"bytes": 3}]) is None


def test_the_sentence_at_the_end_names_the_main_metric(recipe: Path) -> None:
    said = partavg_does("run", recipe, "--set", 'metrics.extra=["top_k"]', "--out", "b")
    summary = json.loads(Path("b/summary.json").read_text())
    assert f"top-5 accuracy of u_K {100 * summary['top_k']:.2f} %" in said
    assert read(Path("b/config.toml"))["metrics"]["extra"] == [
        {"name": "top_k", "k": 5, "ignore_index": -100}
    ]
