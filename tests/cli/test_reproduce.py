"""Recipes, splits and reproduction as a person uses them: real processes."""

import csv
import re
import shlex
import signal
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.cli.program import partavg, wait_for_rows
from tests.processes import Command

from partavg.cli.recipes_table import recipes_tables
from partavg.data import cache, imdb
from partavg.recipes import names

SMALL = ["--set=training.workers=2", "--set=model.width=8", "--set=data.length=6"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a decoded copy of made-up reviews, as the real ones would be kept."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for part, count in (("train", 600), ("test", 100)):
        labels = torch.arange(count) % 2
        ranks = torch.randint(1, 40, (count, 8), generator=generator) + 40 * labels[:, None]
        tensors[f"{part}_ranks"] = ranks.flatten().int()
        tensors[f"{part}_ends"] = torch.arange(8, 8 * count + 1, 8)
        tensors[f"{part}_labels"] = labels
    path = cache.cache_path(imdb.SOURCE, tmp_path / "data")
    path.parent.mkdir(parents=True)
    torch.save({"fingerprint": "", "tensors": tensors}, path)
    return tmp_path / "data"


@pytest.mark.slow
def test_reproducing_rows_of_a_table(root: Path, tmp_path: Path) -> None:
    done = partavg(
        "reproduce", "table1", "--rows", "imdb-interval2,imdb-interval4", "--scale", 0.02,
        "--seeds", 2, "--data", root, "--out", "out", *SMALL, cwd=tmp_path,
    )  # fmt: skip
    assert "table1/imdb-interval2 (scaled to 0.02 of budget and data)" in done.stdout
    assert "periodic seed 0 scaled 0.02: step 54/54" in done.stdout
    assert "Accuracy in % of u_K (scaled to 0.02 of budget and data)" in done.stdout
    row = re.search(r"table1/imdb-interval2 +periodic +88.14 ± 0.1 +([\d.]+) ± ([\d.]+) +(.*)",
                    done.stdout)  # fmt: skip
    assert row is not None
    assert re.match(r"\+1\.08 / ([+-][\d.]+, (same|other) sign|0\.00)", row[3])
    with (tmp_path / "out" / "results.csv").open() as file:
        cells = list(csv.DictReader(file))
    assert [(cell["recipe"], cell["scheme"], cell["reported"]) for cell in cells] == [
        ("table1/imdb-interval2", "periodic", "88.14"),
        ("table1/imdb-interval2", "partial", "89.22"),
        ("table1/imdb-interval4", "periodic", "88.78"),
        ("table1/imdb-interval4", "partial", "89.27"),
    ]
    assert all(float(cell["measured"]) > 60 for cell in cells), "two vocabularies are easy to tell"
    assert {(cell["seeds"], cell["scale"]) for cell in cells} == {("2", "0.02")}
    assert float(row[1]) == pytest.approx(float(cells[0]["measured"]), abs=0.006)
    assert float(row[2]) == pytest.approx(float(cells[0]["measured_deviation"]), abs=0.006)
    page = (tmp_path / "out" / "table1" / "imdb-interval2" / "report.html").read_text()
    assert "90 epochs, scaled to 0.02 of that and of the data" in page
    assert "Scaled to 0.02 of the recipe&#x27;s budget and data" in page
    whole = (tmp_path / "out" / "report.html").read_text()
    assert (
        "Accuracy in % of u_K (scaled to 0.02 of budget and data), reported and measured" in whole
    )
    assert re.search(r"<td>periodic</td><td>88.78 ± [\d.]+</td><td>[\d.]+ ± ", whole)
    assert "table1/imdb-interval4 partial" in whole
    assert not list(tmp_path.rglob("step-*.pt")), "large models would fill the disk"


def test_reproductions_in_one_folder_are_shown_together(root: Path, tmp_path: Path) -> None:
    common = ["--scale", 0.01, "--data", root, "--out", "out", *SMALL]
    for row in ("table1/imdb-interval2", "table1/imdb-interval4"):
        partavg("reproduce", row, *common, cwd=tmp_path)
    with (tmp_path / "out" / "results.csv").open() as file:
        cells = [(cell["recipe"], cell["scheme"]) for cell in csv.DictReader(file)]
    assert cells == [
        (f"table1/imdb-interval{interval}", scheme)
        for interval in (2, 4)
        for scheme in ("periodic", "partial")
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("table1/imdb-interval2 partial", "table1/imdb-interval4 partial"):
        assert words in page
    assert re.search(
        r"imdb-interval2</th><td>partial</td><td>89.22 ± 0.1</td><td>[\d.]+</td>", page
    )
    (tmp_path / "out" / "results.csv").write_text("my,own,numbers\n")
    again = ["table1/imdb-interval2", *common, "--resume"]
    refused = partavg("reproduce", *again, cwd=tmp_path, code=2)
    assert "out/results.csv is no table of results of partavg" in refused.stderr


@pytest.mark.slow
def test_a_reproduction_that_was_stopped_goes_on(root: Path, tmp_path: Path) -> None:
    arguments = [
        "reproduce",
        "table1/imdb-interval2",
        "--scale",
        "0.03",
        "--data",
        str(root),
        *SMALL,
    ]
    partavg(*arguments, "--out", "whole", cwd=tmp_path)
    folder = "table1/imdb-interval2/partial-seed0"
    steps = len((tmp_path / "whole" / folder / "metrics.jsonl").read_bytes().splitlines())
    process = Command([*arguments, "--out", "broken"], tmp_path, halts=steps + 10)
    wait_for_rows(tmp_path / "broken" / folder / "metrics.jsonl", 6, process)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert process.returncode == 130, complaint
    assert f"--data {root} --out broken --resume" in complaint
    again = complaint.rpartition("continue with: partavg ")[2]
    partavg(*shlex.split(again), cwd=tmp_path)
    one, other = (tmp_path / name / "results.csv" for name in ("whole", "broken"))
    assert one.read_text() == other.read_text()


def test_what_cannot_be_reproduced_is_said_in_one_sentence(root: Path, tmp_path: Path) -> None:
    for arguments, sentence in (
        (["table9"], "'table9' is neither a table nor a recipe: use lm, table1, table2"),
        (["table1", "--rows", "fashion_mnist,x", "--data", "empty"], "fashion_mnist is not in"),
        (["table1", "--rows", "nothing"], "no row of table1 has 'nothing' in its name: there are"),
        (["table1", "--rows", "cifar10", "--data", "empty"], "cifar10 is not in empty: run"),
        (["table1", "--rows", "imdb", "--data", str(root), "--set=model.words=50"],
         "model.words = 50 is too few for imdb"),
    ):  # fmt: skip
        done = partavg("reproduce", *arguments, cwd=tmp_path, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    assert (
        "Invalid value for '--scale'"
        in partavg("reproduce", "table1", "--scale", 2, cwd=tmp_path, code=2).stderr
    )
    assert not (tmp_path / "runs").exists()


def test_recipes_are_listed_and_printed(tmp_path: Path) -> None:
    everything = partavg("recipes", cwd=tmp_path).stdout
    assert re.search(r"table1/cifar10-interval8 +85.70 ± 0.3 +88.17 ± 0.1", everything)
    assert "demo" in everything
    only = partavg("recipes", "table5", cwd=tmp_path).stdout
    assert re.search(r"table5/cifar10-interval2 +91.81 ± 0.1", only)
    assert "table1" not in only
    text = partavg("recipes", "table1/imdb-interval2", cwd=tmp_path).stdout
    assert text.startswith("# Table 1 of the paper")
    assert "[solver]" in partavg("recipes", "lm", cwd=tmp_path).stdout, "a recipe and a folder"
    assert "lm/interval32" in partavg("recipes", "lm/", cwd=tmp_path).stdout
    assert (
        "did you mean 'table1/imdb-interval2'"
        in partavg("recipes", "table1/imdb-interval22", cwd=tmp_path, code=2).stderr
    )


@pytest.mark.parametrize("width", [60, 80])
def test_recipes_say_what_they_are_in_a_narrow_terminal(width: int) -> None:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(*recipes_tables(names()), sep="\n")
    text = console.export_text()
    assert "…" not in text
    assert "As interval32, with 4 workers" in text
    assert re.search(r"cifar10-one-wor", text)
    assert "synchronous SGD reference" in text


def test_a_recipe_that_was_printed_runs_under_its_schemes(root: Path, tmp_path: Path) -> None:
    text = partavg("recipes", "table3/imdb-alpha1-active50", cwd=tmp_path).stdout
    (tmp_path / "mine.toml").write_text(text)
    small = [*SMALL, "--set=split.minimum=1", "--set=training.steps=12", "--data", root]
    done = partavg("run", "mine.toml", "--scheme", "periodic", *small, cwd=tmp_path)
    assert "12/12" in done.stdout
    config = (tmp_path / "runs" / "mine-1" / "config.toml").read_text()
    assert "interval = 10\nparts = 1\n" in config
    done = partavg("compare", "mine.toml", *small, "--out", "both", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "both").iterdir()} == {
        "periodic-seed0", "partial-seed0", "report.html",
    }  # fmt: skip


def test_a_split_is_shown_drawn_and_saved(tmp_path: Path) -> None:
    done = partavg("split", "--plot", "--save", cwd=tmp_path)
    assert re.search(r"64 workers own \d+ to \d+ samples of \d to \d+ of 10 classes", done.stdout)
    picture = (tmp_path / "split.svg").read_text()
    assert picture.count("<g><title>worker") == 64
    assert sum(map(int, re.findall(r"worker \d+: (\d+) samples", picture))) == 12_000
    again = partavg(
        "split", "--set", "split.name=saved", "--set", "split.path=split.npz", cwd=tmp_path
    )
    assert again.stdout.splitlines()[:65] == done.stdout.splitlines()[:65]
    (tmp_path / "recipe.toml").write_text("[training]\nworkers = 3\n")
    wrong = partavg("split", "--plot", "recipe.toml", cwd=tmp_path, code=2)
    assert "recipe.toml does not end in .svg" in wrong.stderr
    assert "workers = 3" in (tmp_path / "recipe.toml").read_text()
    wrong = partavg("split", "--set", "split.name=saved", cwd=tmp_path, code=2)
    assert "'' is not a saved split" in wrong.stderr


def test_a_split_of_texts_is_one_of_sources(tmp_path: Path) -> None:
    own = partavg("split", "lm", "--set=split.name=by_client", cwd=tmp_path).stdout
    assert own.endswith("8 workers own 413 to 3222 samples of 1 to 1 of 8 sources\n")
    mixed = partavg("split", "lm", cwd=tmp_path).stdout
    assert mixed.endswith("samples of 8 to 8 of 8 sources\n")
    refused = partavg("split", "lm", "--set=split.name=shards", cwd=tmp_path, code=2).stderr
    assert "have none: use iid, by_quantity or by_client" in refused


def test_timings_are_shown(tmp_path: Path) -> None:
    done = partavg(
        "run", "demo", "--set=training.steps=8", "--set=metrics.timings=true", cwd=tmp_path
    )
    assert re.search(r"data \d+ %, engine \d+ %, solver \d+ %, averaging \d+ %", done.stdout)
