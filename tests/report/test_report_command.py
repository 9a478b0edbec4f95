"""`partavg report` as a person uses it."""

import stat
from pathlib import Path

from click.testing import CliRunner
from tests.cli.program import RECIPE, partavg
from tests.report.folders import comparison, make

from partavg.cli import main


def test_a_report_with_everything(tmp_path: Path, monkeypatch) -> None:
    comparison(tmp_path / "runs")
    make(tmp_path / "runs" / "open", finished=False)
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER", str(browser))
    done = partavg("report", "runs", "--open", "--csv", "t.csv", "--latex", "t.tex",
                   "--figures", "figures", "--format", "svg", cwd=tmp_path)  # fmt: skip
    assert "report: runs/report.html" in done.stdout
    assert "figures/loss.svg" in done.stdout
    assert (tmp_path / "opened").read_text() == (tmp_path / "runs/report.html").as_uri() + "\n"
    assert "open (unfinished, step 100)" in (tmp_path / "runs/report.html").read_text()
    assert (tmp_path / "t.csv").read_text().startswith("scheme,runs,finished,accuracy,")
    assert r"\toprule" in (tmp_path / "t.tex").read_text()


def test_bad_reports_are_refused_in_one_sentence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    for arguments, sentence in (
        (["empty"], "empty holds no run: name run folders"),
        (["run", "nowhere"], "nowhere holds no run"),
        (["run", "--out", "recipe.toml"], "recipe.toml does not end in .html"),
        (["run", "--csv", "a.txt"], "a.txt does not end in .csv"),
        (["run", "--latex", "a.txt"], "a.txt does not end in .tex"),
        (["run", "--columns", "accuracy"], "--columns is for the table of --latex"),
    ):
        done = CliRunner().invoke(main, ["report", *arguments])
        assert done.exit_code == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))


def test_nothing_of_the_user_is_overwritten(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "one")
    make(tmp_path / "two")
    names = ("one/report.html", "report.html", "t.csv", "t.tex", "figures/loss.svg")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("precious")
    extra = ["--latex", "free.tex"]
    for arguments, name in (
        (["one"], "one/report.html is no report of partavg"),
        (["one", "two"], "report.html is no report of partavg"),
        (["two", "--csv", "t.csv", *extra], "t.csv is there already"),
        (["two", "--latex", "t.tex"], "t.tex is there already"),
        (["two", "--figures", "figures", "--format", "svg", *extra], "loss.svg is there already"),
    ):
        done = CliRunner().invoke(main, ["report", *arguments])
        assert done.exit_code == 2, done.output
        assert name in done.stderr
        assert "--force" in done.stderr
    assert {(tmp_path / name).read_text() for name in names} == {"precious"}
    assert not (tmp_path / "free.tex").exists(), "refused before anything was written"
    assert not (tmp_path / "two/report.html").exists()
    for arguments in (["two"], ["two"], ["one", "two", "--force", "--csv", "t.csv"]):
        assert CliRunner().invoke(main, ["report", *arguments]).exit_code == 0, "ours is renewed"
    assert (tmp_path / "t.csv").read_text() != "precious"


def test_a_run_ends_with_its_report(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    done = partavg("run", "recipe.toml", cwd=tmp_path)
    assert done.stdout.endswith("report: runs/recipe-1/report.html\n")
    page = (tmp_path / "runs" / "recipe-1" / "report.html").read_text()
    assert "<h1>Run recipe-1</h1>" in page
    assert "Labels of each worker" in page
