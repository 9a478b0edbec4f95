"""Files of runs to which anything may have happened: a page, or a sentence that names the file."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.folders import comparison, make

import partavg
from partavg.cli import main
from partavg.report.latex import to_latex
from partavg.report.page import page
from partavg.report.runs import gather, grouped
from partavg.report.table import to_csv

SPLITS = [
    "", "{", "[]", "7", '{"counts": 3}', '{"count": [[1]]}', '{"counts": [1, 2]}',
    '{"counts": [[1], [1, 2]]}', '{"counts": [[]]}', '{"counts": [["a"]]}', '{"counts": [[-1]]}',
    '{"counts": [[1e999]]}', '{"counts": [[NaN]]}', '{"counts": [[0.5]]}', '{"counts": [[true]]}',
    '{"counts": [[1' + "0" * 400 + "]]}", "[" * 100_000, '{"counts": ' + "[" * 5000, "\ud800",
]  # fmt: skip
SUMMARIES = [
    "", "{", "[]", "null", '{"accuracy": "high"}', '{"accuracy": [1]}', '{"bytes": {"a": 1}}',
    '{"accuracy": NaN}', '{"bytes": 1' + "0" * 400 + "}", '{"scale": "small"}', '{"steps": []}',
    '{"timings": 3}', '{"timings": {"data": "long"}}', '{"clients": []}', '{"clients": {"0": 1}}',
    '{"clients": {"0": {"samples": 1, "sent": 1, "received": 1, "away": [3]}}}',
    '{"seconds": true}',
]  # fmt: skip
CONFIGS = [
    "x", "[training", '[averaging]\ninterval = "long"', "[averaging]\nparts = 0\ninterval = 4",
    "[averaging]\ninterval = -3", '[training]\nworkers = "many"', "[training]\nepochs = nan",
    '[participation]\nfraction = "half"', '[split]\nname = "dirichlet"\nalpha = "x"',
    "[averaging]\ninterval = 1.5", "a = " + "[" * 5000,
]  # fmt: skip
ROWS = [
    "7", '{"loss": 1}', '{"step": "one"}', '{"step": -1}', '{"step": 1.5}', "{", "\udcff",
    '{"step": 1' + "0" * 400 + "}",
]  # fmt: skip


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name, texts in (("split.json", SPLITS), ("summary.json", SUMMARIES),
                                      ("environment.json", SPLITS[:4]), ("config.toml", CONFIGS))
     for text in texts] + [("metrics.jsonl", f"{text}\n") for text in ROWS],
)  # fmt: skip
def test_a_damaged_file_is_one_sentence_that_names_it(tmp_path: Path, name: str, text: str) -> None:
    path = make(tmp_path / "run", steps=3)
    write(path / name, text)
    done = CliRunner().invoke(main, ["report", str(path)])
    assert done.exit_code == 2, done.exception
    assert done.stderr.startswith(f"partavg: {path / name} is ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 400
    assert not (path / "report.html").exists()


def test_metrics_of_ones_own_are_checked_too(tmp_path: Path) -> None:
    path = make(tmp_path / "run", steps=3)
    mine = {"mine": partavg.Metric("mine", column="mine", title="Mine").appearance()}
    (path / "metrics.json").write_text(json.dumps(mine))
    (path / "summary.json").write_text('{"mine": 0.5}')
    assert "Mine" in page(gather([path])) or "mine" in page(gather([path]))
    for name, text in (("summary.json", '{"mine": "high"}'), ("metrics.json", '{"mine": 3}')):
        before = (path / name).read_text()
        (path / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name} is damaged"):
            gather([path])
        (path / name).write_text(before)


def test_what_is_odd_but_can_be_shown_is_shown(tmp_path: Path) -> None:
    """What is not a number has no place in a chart; what is not known has none in a table."""
    path = make(tmp_path / "run", steps=3)
    rows = ['{"step": 1, "loss": "low", "accuracy": null, "discrepancy_parts": 3}',
            '{"step": 2, "loss": 0.5, "accuracy": 1e200, "discrepancy_parts": [1, "a"]}',
            '{"step": 3, "loss": NaN, "accuracy": 0.5, "x": {"y": []}, "bytes": [1]}']  # fmt: skip
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (path / "environment.json").write_text('{"started": 3, "gpu": [null, {"a": 1}]}')
    (path / "summary.json").write_text('{"accuracy": null, "other": ["x"], "loss": "?"}')
    assert "Training loss" in page(gather([path]))


@pytest.mark.parametrize("missing", ["accuracy", "train_loss", "bytes", "seconds", "scale", None])
def test_summaries_need_not_have_everything(tmp_path: Path, missing: str | None) -> None:
    comparison(tmp_path, seeds=1, steps=20)
    for path in tmp_path.iterdir():
        summary = json.loads((path / "summary.json").read_text())
        summary.pop(missing, None)
        kept = {} if missing is None else summary
        (path / "summary.json").write_text(json.dumps(kept))
        assert partavg.load_run(path).summary == kept
        assert partavg.load_run(path)._repr_html_()
    groups = grouped(gather([tmp_path]))
    assert page(gather([tmp_path]))
    assert to_csv(groups).startswith("scheme,runs,finished")
    assert r"\toprule" in to_latex(groups)


def test_a_run_of_names_that_nobody_knows_is_shown(tmp_path: Path) -> None:
    """Nothing is looked up or imported: a run of somebody's own module reads as any other."""
    path = make(tmp_path / "run", steps=3)
    (path / "config.toml").write_text(
        '[training]\nworkers = 4\nsteps = 3\n[averaging]\ninterval = 2\nparts = 2\n'
        '[solver]\nname = "mine:Solver"\nmu = 0.5\n[model]\nname = "no_such_module:Net"\n'
        '[data]\nname = "gone.py:read"\n[python]\nmade_by = "a simulation in Python"\n'
    )  # fmt: skip
    text = page(gather([path]))
    assert "4 workers train Net on read for 3 steps" in text
    assert "mine:Solver" in text
    assert partavg.load_run(path).config["solver"]["mu"] == 0.5


KEYS = st.sampled_from(
    ["counts", "accuracy", "train_loss", "bytes", "messages", "seconds", "timings", "clients",
     "scale", "steps", "samples", "sent", "received", "away", "step", "data", "peak_discrepancy",
     "scored", "tests", "seen", "late", "absences"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150)
@given(name=st.sampled_from(["split.json", "summary.json"]), value=JSON, cut=st.integers(0, 40))
def test_any_json_gives_a_page_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any, cut: int
) -> None:
    path = make(tmp_path_factory.mktemp("fuzz") / "run", steps=2)
    text = json.dumps(value)
    (path / name).write_text(text[: len(text) - cut] if cut < len(text) else text)
    with suppress_about(path / name):
        runs = gather([path])
        assert page(runs)
        assert to_csv(grouped(runs))
        assert to_latex(grouped(runs))
    shutil.rmtree(path)


@contextmanager
def suppress_about(path: Path) -> Iterator[None]:
    """A ValueError is fine if it names the file."""
    try:
        yield
    except ValueError as error:
        if str(path) not in str(error):
            raise
