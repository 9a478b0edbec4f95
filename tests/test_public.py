"""The public surface: small, sorted, documented, and as the README says."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import click
import pytest
from tests.commands import blocks, command_lines, parse
from tests.outside import names_restored

import partavg
from partavg.backends.distributed import Averager
from partavg.cli import main, output
from partavg.solvers import SOLVERS

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    ROOT / "benchmarks" / "RESULTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SHELL = ("", "sh", "text")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(partavg.__path__, "partavg.")
    if not module.name.endswith("__main__")
]


def test_the_surface_is_sorted() -> None:
    names = partavg.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name)) == names
    assert all(hasattr(partavg, name) for name in names)


def test_names_are_imported_when_they_are_used() -> None:
    """What a type checker reads, what is exported and where it lives are one list."""
    source = ast.parse(Path(partavg.__file__).read_text())
    block = next(node for node in source.body if isinstance(node, ast.If))
    imports = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {
        (f"partavg.{m}", name) for m, names in partavg._HOMES.items() for name in names.split()
    }
    assert imports == homes
    assert sorted(name for _, name in homes) == sorted(partavg.__all__)
    assert set(partavg.__all__) <= set(dir(partavg))
    everything: dict[str, object] = {}
    exec("from partavg import *", everything)
    assert set(partavg.__all__) <= everything.keys()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        partavg.nothing  # noqa: B018


@pytest.mark.parametrize("module", partavg._MOVED)
def test_names_that_moved_work_for_one_version(module: str) -> None:
    for name in partavg._MOVED[module].split():
        with pytest.warns(DeprecationWarning, match=f"moved to partavg.{module}.{name}"):
            old = getattr(partavg, name)
        assert old is getattr(importlib.import_module(f"partavg.{module}"), name)
        assert name not in partavg.__all__


def test_names_of_costs_that_changed_work_for_one_version() -> None:
    from partavg import cost

    with pytest.warns(DeprecationWarning, match="partavg.cost.plans is called candidates"):
        assert cost.plans is cost.candidates
    with pytest.warns(DeprecationWarning, match="partavg.cost.Job is called Workload"):
        job = cost.Job(10, step=0.5, width=2.0)
    assert job == cost.Workload(10, 0.5, 2.0)
    with pytest.warns(DeprecationWarning, match="width is called bytes_per_number"):
        assert job.width == 2.0
    with pytest.warns(DeprecationWarning, match="WIRE_FORMATS"):
        assert cost.WIRES["bf16"] == 2.0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cost.nothing  # noqa: B018


def test_no_module_hides_a_public_name() -> None:
    """Importing partavg.x would replace a function partavg.x."""
    modules = {module.name for module in pkgutil.iter_modules(partavg.__path__)}
    assert not modules & set(partavg.__all__)


def test_every_public_name_is_documented() -> None:
    for name in partavg.__all__:
        if not name.isupper():
            assert (getattr(partavg, name).__doc__ or "").strip(), name
    text = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == sorted(partavg.__all__)


def test_every_argument_of_attach_and_member_of_its_averager_is_in_a_table() -> None:
    text = (ROOT / "docs" / "distributed.md").read_text()
    cells = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    listed = set(re.findall(r"`(\w+)", cells))
    arguments = {*inspect.signature(partavg.attach).parameters} - {"model", "optimizer"}
    members = {name for name in vars(Averager) if not name.startswith("_")}
    assert arguments | members <= listed


def test_every_public_name_is_in_the_reference() -> None:
    """With its docstring; that Sphinx finds them is checked when the site is built."""
    text = (ROOT / "docs" / "reference.rst").read_text()
    named = re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)$", text, re.MULTILINE)
    assert len(set(named)) == len(named)
    assert set(partavg.__all__) <= set(named)
    solvers = {made.__qualname__ for made in SOLVERS.values()}
    flower = {f"partavg.flower.{name}" for name in ("client_app", "server_app")}
    assert solvers | flower <= set(named)
    for module in ("core", "engines"):
        exported = importlib.import_module(f"partavg.{module}").__all__
        assert {f"partavg.{module}.{name}" for name in exported} <= set(named)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != "triton":  # comes with torch for GPUs only
            raise
        pytest.skip("kernels need triton")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_in_the_pages_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with names_restored():
        for language, block in blocks(path.read_text()):
            if language == "python":
                exec(compile(block, path.name, "exec"), {})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_command_lines_in_the_pages_could_be_run(path: Path) -> None:
    """They name commands, options, recipes and keys that exist."""
    recipes = (ROOT / "docs" / "recipes.md").read_text()
    shell = [content for language, content in blocks(path.read_text()) if language in SHELL]
    for block in shell:
        for line in command_lines(block):
            if line.startswith("_PARTAVG_COMPLETE="):
                assert re.match(r"_PARTAVG_COMPLETE=(bash|zsh|fish)_source partavg\b", line)
                continue
            for override in parse(line).params.get("overrides", ()):
                assert f"| `{override.partition('=')[0]}` |" in recipes, line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_sentences_exist(path: Path) -> None:
    """`partavg run --scheme periodic`: the command is there, and it has the option."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for name, rest in re.findall(r"`partavg ([a-z]+)([^`]*)`", prose):
        command: click.Command | None = main.commands.get(name)
        assert command is not None, name
        for word in rest.split():
            if isinstance(command, click.Group):
                command = command.commands.get(word, command)
            assert not word.startswith("--") or word in {
                option for parameter in command.params for option in parameter.opts
            }, f"{name} {word}"


def test_every_command_is_in_a_page() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    for name in main.commands:
        assert f"partavg {name}" in text, name


def test_exit_codes_are_documented_alike() -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("runs.md", "command-line.md")]
    tables = [re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE) for page in pages]
    assert tables[0] == tables[1]
    known = {0, output.BAD_INPUT, output.DIVERGED, output.LOST, output.INTERRUPTED}
    assert {int(code) for code, _ in tables[0]} == known
    assert all(re.search(rf"\b{code}\b", main.help or "") for code in known)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_in_the_pages_lead_somewhere(path: Path) -> None:
    """In the repository, that is; that they do in the site is checked when it is built."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", path.read_text()):
        if not target.startswith("http"):
            page = path.parent / target if target else path
            assert page.exists(), target
            assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_line_is_lost_as_a_comment(path: Path) -> None:
    """The site leaves out lines that begin with a percent sign."""
    assert not re.search(r"^\s*%", path.read_text(), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings of a page as a repository's host names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_design_names_every_file() -> None:
    """Whoever has read it finds each; those of the fused engine on a page of their own."""
    pages = {
        name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("design", "fused-engine")
    }
    source = ROOT / "src" / "partavg"
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source).parts
        name = path.stem.removesuffix("_kernels").removesuffix("_cuda")
        if name.startswith("__") or {"commands", "template"} & {*inside}:
            continue
        page = "fused-engine" if "fused" in inside else "design"
        assert re.search(rf"\b{name}\b", pages[page]), path


def test_the_readme_fits_a_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 85
    assert any(line.startswith("![") for line in lines), "with a picture"


def test_nothing_names_a_machine() -> None:
    """No page holds a path of where it was written."""
    for path in PAGES:
        assert not re.search(r"/(tmp|work|root|home)/\w", path.read_text()), path


def test_the_quickstart_is_short() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert len([line for line in block[1].splitlines() if line.strip()]) <= 20


def test_recipe_keys_in_the_pages_exist() -> None:
    """docs/recipes.md names every key and no other."""
    from partavg.config import COMPONENTS
    from partavg.config_toml import parse

    text = (ROOT / "docs" / "recipes.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_]+\.[a-z_0-9]+)` \|", text, re.MULTILINE))
    known = set()
    for kind, (registry, _) in COMPONENTS.items():
        known.add(f"{kind}.name")
        for name in registry:
            options = getattr(parse({kind: {"name": name}}), kind).options
            known |= {f"{kind}.{option}" for option in options}
    config = parse({})
    for section in config.__slots__:
        if section not in COMPONENTS:
            known |= {f"{section}.{key}" for key in getattr(config, section).__slots__}
    assert documented == known
