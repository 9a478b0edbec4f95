"""What commands say of themselves: help, examples, completion; all of it without torch."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import get_args

import click
import pytest
from click.shell_completion import ShellComplete
from tests.commands import command_lines, parse
from tests.limits import seconds

from partavg.cli import main, options
from partavg.compare import SCHEMES
from partavg.cost import BACKENDS, WIRES
from partavg.data import SOURCES
from partavg.recipes import names
from partavg.theory.curvature import Method


def walk(command: click.Command, path: str = "partavg") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, f"{path} {name}")


COMMANDS = dict(walk(main))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_with_examples_that_parse(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert command.epilog is not None
    title, *lines = command.epilog.removeprefix("\b\n").rstrip().splitlines()
    assert title == "Examples:"
    assert lines == [f"  {line}" for line in command_lines(command.epilog)], "one command a line"
    assert any(line.startswith(f"  {path}") for line in lines)
    for line in lines:
        parse(line)
    context = click.Context(command, info_name=path)
    assert max(map(len, command.get_help(context).splitlines())) <= 100
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter


def test_a_wrong_command_line_does_not_parse() -> None:
    wrong = [
        "partavg compar",
        "partavg run",
        "partavg run recipe.toml --scale 1",
        "partavg run table9",
        "partavg data fetch",
    ]
    for line in wrong:
        with pytest.raises(click.UsageError):
            parse(line)


@pytest.mark.parametrize("name", [name for name in main.commands if name not in ("data", "flower")])
def test_a_command_passes_on_what_its_work_takes(name: str) -> None:
    work = getattr(import_module(f"partavg.cli.{name}"), name)
    taken = {parameter.name for parameter in main.commands[name].params}
    assert taken == set(inspect.signature(work).parameters)


def test_choices_are_those_of_the_library() -> None:
    """They are written out where commands are declared, to spare them the import."""
    choices = {
        parameter.name: parameter.type.choices
        for command in COMMANDS.values()
        for parameter in command.params
        if isinstance(parameter.type, click.Choice)
    }
    assert tuple(choices["wire"]) == tuple(WIRES)
    assert tuple(choices["backend"]) == tuple(BACKENDS)
    assert tuple(choices["method"]) == get_args(Method)
    assert set(options.FETCHABLE) == {name for name, s in SOURCES.items() if s.downloads}
    schemes = next(p for p in main.commands["compare"].params if p.name == "schemes")
    assert ",".join(SCHEMES) in schemes.help


def complete(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(main, {}, "partavg", "_PARTAVG_COMPLETE").get_completions(
        list(before), incomplete
    )
    return [item.value for item in found if item.type == "plain"]


def test_completion() -> None:
    assert complete("re") == ["recipes", "report", "reproduce"]
    assert complete("run", "table1/cifar10-") == [f"table1/cifar10-interval{n}" for n in (2, 4, 8)]
    assert complete("compare", "de") == ["demo"]
    assert complete("reproduce", "table") == [
        *(f"table{n}" for n in range(1, 6)),
        *(name for name in names() if name.startswith("table")),
    ]
    assert complete("data", "fetch", "svhn") == ["svhn", "svhn_extra"]
    assert "--resume" in complete("run", "--")
    files = ShellComplete(main, {}, "partavg", "_PARTAVG_COMPLETE").get_completions(["run"], "x")
    assert [item.type for item in files] == ["file"], "a recipe can be a file"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = _partavg(_PARTAVG_COMPLETE=f"{shell}_source")
    assert "_PARTAVG_COMPLETE" in done.stdout
    words = {"COMP_WORDS": "partavg run tab", "COMP_CWORD": "tab" if shell == "fish" else "2"}
    done = _partavg(_PARTAVG_COMPLETE=f"{shell}_complete", **words)
    assert "table2/cifar10-one-worker" in done.stdout


def _partavg(**environment: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; sys.modules['torch'] = None; sys.argv = ['partavg']\n"
    script += "from partavg.cli import main; main(prog_name='partavg')"
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds(),
        check=True,
    )


def test_what_needs_no_torch_does_not_import_it() -> None:
    """Help, completion and mistakes answer in a fifth of a second; with torch it would be three."""
    heavy = ("torch", "numpy", "pydantic", "rich", "flwr")
    code = "import sys, partavg.cli\nprint(*(name for name in sys.argv[1:] if name in sys.modules))"
    command = [sys.executable, "-c", code, *heavy]
    assert subprocess.check_output(command, text=True, timeout=seconds()).strip() == ""
