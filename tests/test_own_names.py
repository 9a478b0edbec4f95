"""Names that are the user's own, by the command line: files, modules, installed packages."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import own
from tests.cli.program import partavg, wait_for_rows
from tests.outside import names_restored
from tests.processes import Command

import partavg as library
from partavg import own_code
from partavg.backends.processes import OneProcess
from partavg.recipe import load
from partavg.recipe_run import _check_same
from partavg.registry import KINDS, table
from partavg.report.watch import Watcher

SOURCE = Path(library.__file__).parents[1]


def executions(folder: Path) -> int:
    """How often the file was executed since this was asked last."""
    log = folder / "executed"
    count = len(log.read_text().splitlines()) if log.exists() else 0
    log.unlink(missing_ok=True)
    return count


def test_every_kind_by_a_file_and_by_a_module(tmp_path: Path) -> None:
    own.write(tmp_path / "by_file")
    own.write(tmp_path, "own_module")
    partavg("run", "by_file", "--out", "one", cwd=tmp_path)
    assert executions(tmp_path) == 1
    partavg("run", "recipe.toml", "--out", "two", cwd=tmp_path)
    assert executions(tmp_path) == 1
    rows = (tmp_path / "one" / "metrics.jsonl").read_text()
    assert rows == (tmp_path / "two" / "metrics.jsonl").read_text()
    assert "largest" in json.loads(rows.splitlines()[0])
    assert (tmp_path / "one" / "lines.txt").read_text().split() == list("123456")
    config = library.load_run(tmp_path / "two").config
    named = [config[kind]["name"] for kind in ("data", "split", "model", "loss", "pace", "adapt")]
    named += [config[kind]["name"] for kind in ("aggregate", "attack")]
    named += [config["lr_schedule"]["name"], config["solver"]["base"]["name"]]
    named += [config["averaging"]["partition"], *config["metrics"]["extra"]]
    named += config["metrics"]["sinks"]
    assert {name.partition(":")[0] for name in named} == {"own_module"}
    assert len(named) == len(KINDS), "every kind is tested"


def test_options_are_checked_like_those_of_our_own(tmp_path: Path) -> None:
    own.write(tmp_path)
    for setting, problem in {
        "model.hiden=3": "unknown key 'model.hiden': did you mean 'model.hidden'?",
        "loss.by='much'": 'loss.by = "much": input should be a valid number',
        "solver.base.most=true": "solver.base.most = true: input should be a valid number",
        "pace.rests=1": "did you mean 'pace.rest'?",
        "aggregate.shar=1": "did you mean 'aggregate.share'?",
        "attack.by='much'": 'attack.by = "much": input should be a valid number',
    }.items():
        said = partavg("run", "recipe.toml", "--set", setting, cwd=tmp_path, code=2).stderr
        assert problem in said


def test_a_comparison_executes_a_file_once(tmp_path: Path) -> None:
    own.write(tmp_path)
    said = partavg("compare", ".", "--schemes", "periodic,partial", cwd=tmp_path).stdout
    assert "largest" in said
    assert executions(tmp_path) == 1
    partavg("split", ".", cwd=tmp_path)
    partavg("theory", ".", "--workers", "1", cwd=tmp_path)
    assert executions(tmp_path) == 2


def test_names_after_set_are_relative_to_where_the_command_is_run(tmp_path: Path) -> None:
    own.write(tmp_path / "there")
    small = ("--set", "training.steps=2", "--set", "averaging.interval=4")
    given = ("--set", "model.name=there/own.py:Net", "--set", "split.name=iid")
    partavg("run", "demo", "--set", "data.name=there/own.py:points", *given, *small, "--out", "r",
            cwd=tmp_path)  # fmt: skip
    said = partavg("run", "demo", "--set", "model.name=own.py:Net", cwd=tmp_path, code=2).stderr
    assert f"{tmp_path / 'own.py'} is not there: a file named in a recipe is looked for" in said


def test_the_run_folder_keeps_what_was_executed(tmp_path: Path) -> None:
    own.write(tmp_path)
    (tmp_path / "unused.py").write_text("x = 1\n")
    partavg("run", "recipe.toml", "--out", "run", cwd=tmp_path)
    index = json.loads((tmp_path / "run" / "code.json").read_text())
    assert set(index) == {"code/own.py", "code/helpers.py"}
    for name, about in index.items():
        kept = (tmp_path / "run" / name).read_bytes()
        assert kept == Path(about["file"]).read_bytes()
        assert about["sha256"] == sha256(kept).hexdigest()
    partavg("run", "demo", "--set", "training.steps=1", "--set", "training.workers=2", "--out",
            "run", "--force", cwd=tmp_path)  # fmt: skip
    assert not list((tmp_path / "run").glob("code/*.py"))
    assert not (tmp_path / "run" / "code.json").exists()


def stopped(folder: Path, *words: str) -> str:
    """A run that was stopped on its way; the command that it says goes on."""
    command = Command(["run", "recipe.toml", *words, "--out", "run"], folder, halts=3)
    wait_for_rows(folder / "run" / "metrics.jsonl", 2, command)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate()
    assert command.returncode == 130, errors
    found = re.search(r"continue with: partavg (.*)", errors)
    assert found, errors
    return found[1]


def test_the_command_that_is_printed_goes_on(tmp_path: Path) -> None:
    own.write(tmp_path)
    partavg("run", "recipe.toml", "--out", "whole", cwd=tmp_path)
    again = stopped(tmp_path)
    partavg(*shlex.split(again), cwd=tmp_path)
    rows = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "run")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("file", ["own.py", "helpers.py"])
def test_a_changed_file_is_not_resumed_with(file: str, tmp_path: Path) -> None:
    own.write(tmp_path)
    partavg("run", "recipe.toml", "--out", "whole", cwd=tmp_path)
    again = shlex.split(stopped(tmp_path))
    (tmp_path / file).write_text((tmp_path / file).read_text() + "\n# other\n")
    said = partavg(*again, cwd=tmp_path, code=2).stderr
    assert said == (
        f"partavg: {tmp_path / file} has changed since run was started: put it back (run/code has "
        f"it as it was), go on with the copy by partavg run run/config.toml --out run --resume, or "
        f"begin again with --force\n"
    )
    done = partavg("run", "run/config.toml", "--out", "run", "--resume", cwd=tmp_path)
    assert (
        "does not hold what it held when run was started: going on with the copies" in done.stderr
    )
    rows = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "run")]
    assert rows[0] == rows[1]


def test_a_changed_module_is_not_resumed_with(tmp_path: Path) -> None:
    own.write(tmp_path, "own_module")
    again = shlex.split(stopped(tmp_path))
    assert "code/modules/own_module.py" in json.loads((tmp_path / "run" / "code.json").read_text())
    (tmp_path / "own_module.py").write_text(own.OWN + "\n# other\n")
    said = partavg(*again, cwd=tmp_path, code=2).stderr
    assert said.startswith("partavg: own_module has changed since run was started")


def test_a_recipe_that_moved_goes_on(tmp_path: Path) -> None:
    own.write(tmp_path)
    stopped(tmp_path)
    (tmp_path / "new").mkdir()
    for name in ("recipe.toml", "own.py", "helpers.py"):
        (tmp_path / name).rename(tmp_path / "new" / name)
    moved = ("run", "new/recipe.toml", "--out", "run", "--resume")
    partavg(*moved, cwd=tmp_path)
    assert (tmp_path / "run" / "summary.json").exists()
    assert "finished already" in partavg(*moved, cwd=tmp_path).stdout
    (tmp_path / "run" / "code" / "own.py").write_text("# touched\n")
    words = ("run", "run/config.toml", "--out", "run", "--resume")
    said = partavg(*words, cwd=tmp_path, code=2).stderr
    assert "does not hold what was kept with the run: begin again with --force" in said
    (tmp_path / "run" / "code.json").write_text('{"../../x": {"sha256": "", "file": ""}}')
    assert "is damaged" in partavg(*words, cwd=tmp_path, code=2).stderr


def test_sinks_may_change(tmp_path: Path) -> None:
    recipe = own.write(tmp_path)
    (tmp_path / "lines.py").write_text(own.OWN.replace('open("executed", "a")', "open('x', 'w')"))
    recipe.write_text(recipe.read_text().replace("own.py:Lines", "lines.py:Lines"))
    again = shlex.split(stopped(tmp_path))
    (tmp_path / "lines.py").write_text((tmp_path / "lines.py").read_text() + "\n# other\n")
    partavg(*again, cwd=tmp_path)


def test_report_and_watch_never_import_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.write(tmp_path / "task")
    partavg("run", "task", "--out", "run", cwd=tmp_path)
    executions(tmp_path)
    partavg("report", "run", "--out", "page.html", "--csv", "table.csv", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "code/own.py:Net" in Watcher(Path("run"), 1.0).page().decode()
    assert library.load_run("run").config["model"]["name"] == "code/own.py:Net"
    assert executions(tmp_path) == 0
    assert "code/own.py:Net" in (tmp_path / "page.html").read_text()


class OtherCode(OneProcess):
    """Two ranks, of which the second has another file."""

    def each(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return [value, value]
        changed = {key: "0" if "helpers.py" in key else one for key, one in value.items()}
        return [value, changed]


def test_ranks_with_other_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with names_restored():
        config = load(own.write(tmp_path)).config()
        data = library.load_dataset("fashion_subset")
        found = f"rank 1 has sha256 of {tmp_path / 'helpers.py'} = 0, rank 0 has [0-9a-f]{{64}}: "
        with pytest.raises(ValueError, match=found):
            _check_same(OtherCode(), config, data)


FILE = """
import torch
def net(): return torch.nn.Linear(5, 3)
number = 3
"""


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("f.py", FILE, "is not known: write f.py:name, with what you mean in that file"),
        ("f.py:", FILE, "cannot be used: write file.py:name or package.module:name"),
        (":net", FILE, "cannot be used: write file.py:name or package.module:name"),
        ("f.py:a b", FILE, "cannot be used: write file.py:name or package.module:name"),
        ("f.py:nett", FILE, "/f.py has no 'nett': did you mean 'net'?"),
        ("f.py:zzz", FILE, "/f.py has no 'zzz': use net, number"),
        ("f.py:number", FILE, "cannot be used: 3 cannot be a model: give a class or a function"),
        ("g.py:net", FILE, "/g.py is not there: a file named in a recipe"),
        ("f.py:net", "import nowhere\n", "/f.py cannot be executed: ModuleNotFoundError: No "),
        ("f.py:net", "\n\n1 / 0\n", "ZeroDivisionError: division by zero ({path}, line 3)"),
        ("f.py:net", "exit(5)\n", "/f.py cannot be executed: SystemExit: 5"),
        ("f.py:net", "x = 1\ndef net(:\n", "/f.py, line 2, is no Python: SyntaxError: "),
        ("f.py:net", "x = '\0'\n", "/f.py"),
        ("f.py:net", "from . import nix\n", "/f.py cannot be executed: ImportError: "),
        ("nowhere.at.all:net", FILE, "there is no module 'nowhere': install it, or name the "),
        ("f.txt:net", FILE, "there is no module 'f.txt'"),
        ("a/f:net", FILE, "'a/f' is neither a Python file nor a module"),
        ("math:pi", FILE, "cannot be used: 3.14159"),
        ("torch.nn:Linearr", FILE, "torch.nn has no 'Linearr': did you mean 'Linear'?"),
        ("f.py:net", "def net(): return 3\n", "gave int, and not a torch.nn.Module"),
        ("f.py:net", "def net(a, b, c): return 3\n", "cannot be called with the shape of an input"),
        ("f.py:net", "\ndef net(): return {}['key']\n", "failed: KeyError: 'key' ({path}, line 2)"),
        ("f.py:net", "def net(*, of=None): return 3\n", "has an option 'of' without a type"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_in_a_sentence(
    name: str, text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text(text)
    (tmp_path / "r.toml").write_text(f'model.name = "{name}"\n')
    said = partavg("run", "r.toml", cwd=tmp_path, code=2).stderr
    assert said.startswith("partavg: model.name = ")
    assert said.count("\n") == 1
    assert problem.format(path=tmp_path / "f.py") in said


@given(st.text(max_size=20), st.sampled_from(KINDS))
def test_any_text_is_a_name_or_a_mistake(text: str, kind: str) -> None:
    for name in (text, f"{text}:", f":{text}", f"{text}.py:{text}", f"{text}:{text}"):
        if name not in table(kind):
            with pytest.raises(ValueError, match=r"is not known: |cannot be used: "):
                table(kind).find(name, "a.key")


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    said = partavg("run", "demo", "--set", "solver.name=sdg", cwd=tmp_path, code=2).stderr
    assert "did you mean 'sgd'? (adam, adamw, " in said
    assert "or your own file.py:name)" in said


def test_neighbors_are_the_files_own(tmp_path: Path) -> None:
    """Packages and relative imports; a module of that name from elsewhere is no neighbor."""
    for folder, value in (("a", 1), ("b", 2)):
        there = tmp_path / folder / "inside"
        there.mkdir(parents=True)
        (there / "__init__.py").write_text("from .deep import value\n")
        (there / "deep.py").write_text(f"value = {value}\n")
        (tmp_path / folder / "one.py").write_text("from .inside import value\nimport json\n")
        (tmp_path / folder / "other.py").write_text("import neighbor_of_one\n")
        (tmp_path / folder / "neighbor_of_one.py").write_text("")
    found = [own_code.executed(f"{tmp_path / folder}/one.py:value") for folder in ("a", "b")]
    assert [code.module.value for code in found] == [1, 2]
    assert set(found[0].files) == {"one.py", "inside/__init__.py", "inside/deep.py"}
    own_code.executed(f"{tmp_path}/a/other.py:x")
    try:
        with pytest.raises(
            ValueError, match=r"imports neighbor_of_one, and .*/a/neighbor_of_one.py"
        ):
            own_code.executed(f"{tmp_path}/b/other.py:x")
    finally:
        del sys.modules["neighbor_of_one"]


def test_a_recipe_looks_again_and_a_run_does_not(tmp_path: Path) -> None:
    file, recipe = tmp_path / "net.py", tmp_path / "r.toml"
    recipe.write_text('model.name = "net.py:net"\n')
    file.write_text("def net(*, width: int = 1): ...\n")
    config = load(recipe).config()
    assert config.model.options == {"width": 1}
    file.write_text("def net(*, width: int = 22): ...\n")
    kept = own_code.executed(config.model.name)
    assert kept.files["net.py"].endswith(b"= 1): ...\n"), "what was executed, not what is there"
    assert load(recipe).config().model.options == {"width": 22}


def package(folder: Path, name: str, points: dict[str, str], text: str) -> None:
    """A package as an installer leaves it."""
    (folder / f"{name}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = "\n".join(f"[partavg.{kind}]\n{point}\n" for kind, point in points.items())
    (info / "entry_points.txt").write_text(groups)


def installed(folder: Path, *words: str, code: int = 0) -> str:
    """What a command says where the packages of a folder are installed."""
    path = os.pathsep.join([str(SOURCE), str(folder / "site")])
    done = subprocess.run(
        [sys.executable, "-m", "partavg", *words], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_installed_packages_add_names(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    helpers = own.HELPERS.replace("import torch", "")
    text = own.OWN.replace("from helpers import clouds  # lies beside this file", helpers)
    package(site, "fine", {"model": "thin = fine:Net", "data": "clouds = fine:points"}, text)
    package(site, "broken", {"model": "wide = broken:Net"}, "open('x', 'w')\nimport nowhere\n")
    package(site, "twin", {"model": "thin_too = twin:a"}, "")
    package(site, "twin2", {"model": "thin_too = twin2:a"}, "")
    small = ("--set", "training.steps=2", "--set", "averaging.interval=4",
             "--set", "model.name=thin", "--set", "split.name=iid")  # fmt: skip
    installed(tmp_path, "run", "demo", *small, "--set", "data.name=clouds", "--out", "run")
    executions(tmp_path)
    installed(tmp_path, "report", "run")
    assert ">thin<" in (tmp_path / "run" / "report.html").read_text()
    assert not (tmp_path / "x").exists(), "what is broken was not imported"
    said = installed(tmp_path, "run", "demo", "--set", "model.name=wide", code=2)
    assert said == (
        "partavg: model.name = 'wide' cannot be used: package broken, which has it, cannot be "
        "imported: ModuleNotFoundError: No module named 'nowhere'; update or remove that package\n"
    )
    said = installed(tmp_path, "run", "demo", "--set", "model.name=thin_too", code=2)
    assert "packages twin and twin2 both have one: name it as module:name" in said
    said = installed(tmp_path, "run", "demo", "--set", "model.name=thn", code=2)
    assert "did you mean 'thin'? (cnn, " in said
    assert executions(tmp_path) == 0


PROGRAM = """
import partavg
from pathlib import Path
from torch import nn


@partavg.register("model", "flat")
def flat(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))


@partavg.register("sink", "once")
class Once:
    def begin(self, about): ...
    def take(self, row):
        if not Path("failed").exists():
            Path("failed").touch()
            raise ConnectionError("no network")
    def end(self, summary): ...


if __name__ == "__main__":
    from partavg.cli import main

    main()
"""


@pytest.mark.slow
def test_a_program_of_ones_own_says_how_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "r.toml").write_text(
        'model.name = "flat"\nmetrics.sinks = ["once"]\ntraining = {workers = 2, steps = 3}\n'
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def does(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    said = does("mine.py", "run", "r.toml", "--out", "run").stderr
    found = re.search(r"continue with: python (mine\.py run .*)", said)
    assert found, said
    done = does(*shlex.split(found[1]))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
