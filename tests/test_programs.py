"""The programs beside the package: all can be imported, those that are quick are run."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from tests.cli.program import partavg
from tests.published import GRAY, LABELS, write_fashion_mnist

ROOT = Path(__file__).parent.parent
FOLDERS = [ROOT / name for name in ("tools", "benchmarks", "examples")]
OF_FRAMEWORKS = {"huggingface_trainer", "lightning_module", "accelerate_loop"}
"""Examples that tests/integrations runs, on ranks that have imported the frameworks."""
PROGRAMS = {
    f"{path.parent.name}/{path.stem}": path
    for folder in FOLDERS
    for path in sorted(folder.glob("*.py"))
    if path.stem not in OF_FRAMEWORKS
}
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import a program as Python does that is given its path, and forget it with the test."""

    def found(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(PROGRAMS[name].parent))
        monkeypatch.delitem(sys.modules, PROGRAMS[name].stem, raising=False)  # of a test's folder
        return import_module(PROGRAMS[name].stem)

    yield found
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent in FOLDERS:
            del sys.modules[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_can_be_imported_and_then_do_nothing(
    name: str, load: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load(name).__doc__
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.startswith("examples/")])
def test_examples_run(
    name: str, load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(PROGRAMS[name].read_text().splitlines()) <= 120
    program = load(name)
    for constant in {"STEPS", "EPOCHS"} & vars(program).keys():
        monkeypatch.setattr(program, constant, 1)
    program.main()
    assert capsys.readouterr().out.strip()


def lines(picture: str) -> list[int]:
    """How many curves each chart of a picture has; it must be well-formed."""
    space = "{http://www.w3.org/2000/svg}"
    charts = ElementTree.fromstring(picture).findall(f"{space}svg/{space}svg")
    return [sum("line" in path.get("class", "") for path in chart) for chart in charts]


def compared(folder: Path, *words: str) -> Path:
    """A comparison of almost no work."""
    small = ["training.steps=4", "training.workers=2", "metrics.evaluate_every=2"]
    options = [word for setting in small for word in ("--set", setting)]
    partavg("compare", *words, *options, "--out", "runs", cwd=folder)
    return folder / "runs"


def test_the_picture_of_the_readme(load: Load, tmp_path: Path) -> None:
    picture = load("tools/draw_demo").draw(compared(tmp_path))
    assert lines(picture) == [3, 3]
    assert picture.count(">synchronous<") == 1


def test_the_picture_between_periodic_and_partial(load: Load, tmp_path: Path) -> None:
    program = load("tools/draw_between")
    schemes = ["--schemes", "periodic,2-parts,partial", "--seeds", "2"]
    found = program.summaries(compared(tmp_path, "study/between", *schemes))
    assert lines(program.draw(found)) == [4, 4], "the means and three deviations"
    assert [row.split()[1] for row in program.table(found).splitlines()] == ["1", "2", "20"]


def test_the_picture_of_solvers(load: Load, tmp_path: Path) -> None:
    schemes = ["--schemes", "sgd-periodic,sgd-partial,scaffold-periodic,scaffold-partial"]
    picture = load("tools/draw_solvers").draw(
        compared(tmp_path, "study/solvers", *schemes, "--seeds", "2")
    )
    ElementTree.fromstring(picture)
    assert picture.count("<title>scaffold p") == 2
    assert picture.count("<rect") == 2 * 2 + 2, "and two in the legend"


def test_the_study_of_robust_aggregates(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Begun, stopped and gone on with; then its tables and its picture."""
    study, path = load("benchmarks/robust_study"), tmp_path / "rows.csv"
    small = {"ATTACKS": {"sign_flip": 2.0, "label_flip": None}, "AGGREGATES": ("mean", "median"),
             "FRACTIONS": (0.4,), "RATES": (0.02, 0.05), "JUDGED_BY": (1, 2),
             "SLOWLY": (("mean", "label_flip", 0.4),)}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(study, name, value)
    trial = "training.steps=4", "training.workers=5", "averaging.interval=4", "engine.name=looped"
    monkeypatch.setattr(study, "SCHEMES", {"periodic": 1, "partial": 4})
    study.run(path, tmp_path, trial)
    rows = path.read_text().splitlines()
    assert len(rows) == 1 + 4 * 2 + 2 * 4 * 3 + 2 * 2
    path.write_text("\n".join(rows[:11]) + "\n")
    study.run(path, tmp_path, trial)
    assert path.read_text().splitlines() == rows
    tables = load("benchmarks/robust_tables")
    known = study.read(path)
    assert len(tables.slow_table(known)) == 3
    assert tables.significant(known) == []
    (_, _, *lines_) = tables.gain_table(known)
    assert [line.split("|")[1:3] for line in lines_] == [
        [" none ", " 0 % "], [" sign_flip ", " 40 % "], [" label_flip ", " 40 % "],
    ]  # fmt: skip
    assert lines(load("tools/draw_robust").draw(known, "partial")) == [2, 2]


def test_the_picture_of_the_speed_up(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load("tools/draw_speedup")
    for name, small in {"WORKERS": (1, 2), "STEPS": 8, "RUNS": 2}.items():
        monkeypatch.setattr(program, name, small)
    assert lines(program.draw(program.values())) == [4]


def test_rows_of_the_subset(load: Load, tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    rows = load("tools/make_fashion_subset").rows(tmp_path / "FashionMNIST" / "raw", "train", 3)
    assert rows[:, 0].tolist() == LABELS[:3]
    assert rows[:, 1:].tobytes() == GRAY[:3].tobytes()


def test_the_benchmark_of_solvers(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load("benchmarks/solvers")
    for name, small in {"WORKERS": 4, "ITERATIONS": 1, "ROUNDS": 2}.items():
        monkeypatch.setattr(program, name, small)
    monkeypatch.setattr(sys, "argv", ["solvers.py"])
    program.main()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(program.SOLVERS)
