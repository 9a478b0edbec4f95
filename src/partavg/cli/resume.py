"""The command line that goes on with what a command began."""

import sys
from pathlib import Path

import click
from click.core import ParameterSource

_ABOUT_THE_FOLDER = ("out", "resume", "force")


def program(context: click.Context) -> list[str]:
    """The program that a command belongs to: a user's own file, or none where it is `partavg`."""
    called = context.find_root().info_name or ""
    return [sys.argv[0]] if called.endswith(".py") else []


def resuming_words(context: click.Context, out: Path) -> list[str]:
    """The words after `partavg`: the command with all that it was given, but resuming in `out`."""
    words = [context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _ABOUT_THE_FOLDER:
            words += _words(parameter, context.params[name])
    return [*words, "--out", str(out), "--resume"]


def _words(parameter: click.Parameter, value: object) -> list[str]:
    """How a parameter is given on a command line."""
    values = value if isinstance(value, tuple | list) else [value]
    if isinstance(parameter, click.Argument):
        return [str(each) for each in values]
    option = max(parameter.opts, key=len)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [option] if value else []
    return [word for each in values for word in (option, str(each))]
