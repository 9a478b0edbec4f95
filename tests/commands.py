"""Command lines in texts, parsed as click would, without running them."""

import re
import shlex

import click

from partavg.cli import main
from partavg.recipes import names

_END = {"|", ">", "&", ";", "&&", "||"}


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a Markdown page: language and content."""
    found = re.findall(r"^```([^\n`]*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [(language, content) for language, content in found]


def command_lines(text: str) -> list[str]:
    """The commands of a shell text that start partavg, those continued with a backslash joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (line.strip().removeprefix("$ ") for line in re.split(r"\n|&&", joined))
    return [line for line in lines if re.match(r"partavg\s|torchrun .*-m partavg\s|_PARTAVG", line)]


def parse(line: str) -> click.Context:
    """The innermost context of a command line; a UsageError where it could not be run."""
    words = shlex.split(line.replace("$i", "1"), comments=True)  # in a shell's loop over numbers
    end = next((place for place, word in enumerate(words) if word in _END), len(words))
    arguments = words[words.index("partavg") + 1 : end]
    command: click.Command = main
    context: click.Context | None = None
    while True:
        context = command.make_context(command.name, list(arguments), parent=context)
        arguments = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not arguments:
            break
        found = command.get_command(context, arguments[0])
        if found is None:
            raise click.UsageError(f"no command {arguments[0]!r}: {line}")
        command, arguments = found, arguments[1:]
    _check_names(context)
    return context


def _check_names(context: click.Context) -> None:
    """A recipe that is no file and no folder comes with the package, and so does a table."""
    tables = {name.partition("/")[0] for name in names()}
    for parameter in ("recipe", "target"):
        given = context.params.get(parameter)
        if given and not given.endswith((".toml", "/")) and given not in {*names(), *tables, "all"}:
            raise click.UsageError(f"no recipe {given!r}")
