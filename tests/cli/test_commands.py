"""What commands say of themselves: help, examples, completion; all of it without torch."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import click
import pytest
from click.shell_completion import ShellComplete
from tests.commands import command_lines, parse
from tests.limits import seconds

from partavg.cli import main, options
from partavg.comparison import SCHEMES
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost import BACKENDS
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


def test_choices_are_those_of_the_library() -> None:
    """They are written out where commands are declared, to spare them the import."""
    choices = {
        parameter.name: parameter.type.choices
        for command in COMMANDS.values()
        for parameter in command.params
        if isinstance(parameter.type, click.Choice)
    }
    assert tuple(choices["wire"]) == tuple(WIRE_FORMATS)
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
        *(f"table{n}" for n in range(1, 7)),
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


def _partavg(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that can import neither torch nor what is slow beside it."""
    script = "import sys; sys.modules |= dict.fromkeys(['torch', 'numpy', 'pydantic'])\n"
    script += "from partavg.cli import main; main(sys.argv[1:], prog_name='partavg')"
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds(),
        check=True,
    )


HEAVY = ("torch", "numpy", "pydantic", "rich", "flwr", "platformdirs", "webbrowser")


def test_the_command_line_imports_nothing_heavy() -> None:
    """Help, completion and mistakes answer in a tenth of a second; with torch it would be three."""
    code = "import sys, partavg.cli\nprint(*(name for name in sys.argv[1:] if name in sys.modules))"
    command = [sys.executable, "-c", code, *HEAVY]
    assert subprocess.check_output(command, text=True, timeout=seconds()).strip() == ""


ANSWERS = """
import json, sys
for name in sys.argv[2:]:
    sys.modules[name] = None  # importing it fails from now on
import click
from click.shell_completion import ShellComplete
from partavg.cli import main

completion = ShellComplete(main, {}, "partavg", "_PARTAVG_COMPLETE")
for path in json.loads(sys.argv[1]):
    words = path.split()[1:]
    main([*words, "--help"], prog_name="partavg", standalone_mode=False)
    try:
        main([*words, "--mistyped"], prog_name="partavg", standalone_mode=False)
    except click.NoSuchOption:
        print("mistyped:", path)
    print("completed:", path, len(completion.get_completions(words, "--")))
    completion.get_completions(words, "")
"""


def test_every_command_answers_without_anything_heavy() -> None:
    """Help, a mistyped option and completion of each command, where nothing heavy is installed."""
    command = [sys.executable, "-c", ANSWERS, json.dumps(list(COMMANDS)), *HEAVY]
    said = subprocess.check_output(command, text=True, timeout=seconds()).splitlines()
    for path in COMMANDS:
        assert any(line.startswith(f"Usage: {path} ") for line in said)
        assert f"mistyped: {path}" in said
        assert any(re.fullmatch(f"completed: {path} [1-9].*", line) for line in said)


def test_recipes_are_listed_and_printed_without_torch() -> None:
    assert "table1/cifar10-interval8" in _partavg("recipes").stdout
    assert "[averaging]" in _partavg("recipes", "demo").stdout
