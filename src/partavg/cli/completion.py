"""How a shell completes `--set section.key=value`; nothing here imports torch.

The settings that there are stand in settings.json, which `pytest --record` writes and a test
compares with the classes and functions that they belong to.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from partavg.recipes import DEMO
from partavg.recipes.files import find, read

Keys = dict[str, list[str]]
"""Settings, and the values of those that have few."""


def settings(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Settings of the recipe that is named, or their values."""
    known = dict(_keys(_tables(context)))
    key, equals, _ = incomplete.partition("=")
    if equals:
        words = [f"{key}={value}" for value in known.get(key, [])]
    else:
        words = [f"{name}=" for name in known]
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _tables(context: click.Context) -> dict[str, dict[str, Any]]:
    """The sections of the recipe, with the names that were set before."""
    # An option that waits for its value keeps click from giving arguments their names.
    recipe = next(iter(context.args), None) or context.params.get("recipe")
    try:
        found = read(find(recipe or DEMO))
    except ValueError:
        found = {}
    tables = {name: dict(values) for name, values in found.items() if isinstance(values, dict)}
    for override in context.params.get("overrides") or ():
        key, _, value = override.partition("=")
        section, _, rest = key.strip().partition(".")
        if rest == "name":
            tables[section] = {"name": value.strip()}
        elif rest.endswith(".name"):
            tables.setdefault(section, {})[rest.removesuffix(".name")] = {"name": value.strip()}
    return tables


def _keys(tables: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    known = json.loads(resources.files("partavg.cli").joinpath("settings.json").read_text("utf-8"))
    for section, keys in known["sections"].items():
        yield from ((f"{section}.{key}", values) for key, values in keys.items())
    for kind, component in known["components"].items():
        yield from _options(known["components"], kind, tables.get(kind, {}), component)


def _options(
    components: Mapping[str, Any], path: str, table: Any, component: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    """The name of a component and its options; an option that is a component has its own."""
    named = component["names"]
    yield f"{path}.name", list(named)
    chosen = table.get("name", component["default"]) if isinstance(table, dict) else ""
    for key, values in named.get(chosen, {}).items():
        if isinstance(values, str):  # the kind of another component
            inner = table.get(key, {})
            yield from _options(components, f"{path}.{key}", inner, components[values])
        else:
            yield f"{path}.{key}", values


@add_completion_class
class Bash(BashComplete):
    """For bash, which takes "=" and ":" for the ends of words; no space comes after a "="."""

    source_template = BashComplete.source_template.replace(
        'COMP_WORDS="${COMP_WORDS[*]}"',
        'COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDS="${COMP_WORDS[*]}"',
    ).replace(
        "COMPREPLY+=($value)",
        "COMPREPLY+=($value); [[ $value == *= ]] && compopt -o nospace 2> /dev/null",
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words of the line as they stand there, and the last one."""
        line = os.environ.get("COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)[1:]
        last = words.pop() if words and not line[-1].isspace() else ""
        self._gone = re.sub(r"^--[\w-]+=", "", last)
        return words, last

    def format_completion(self, item: CompletionItem[str]) -> str:
        """What comes after the last end of a word."""
        gone = getattr(self, "_gone", "")
        prefix = gone[: max(gone.rfind("="), gone.rfind(":")) + 1]
        return f"{item.type},{item.value.removeprefix(prefix)}"


@add_completion_class
class Zsh(ZshComplete):
    """For zsh: no space comes after a "="."""

    source_template = (
        ZshComplete.source_template.replace(
            'completions+=("$key")',
            'if [[ "$key" == *= ]]; then keys+=("$key"); else completions+=("$key"); fi',
        )
        .replace("    local -a completions\n", "    local -a completions\n    local -a keys\n")
        .replace(
            '    if [ -n "$completions" ]; then',
            '    if [ -n "$keys" ]; then\n'
            "        compadd -U -S '' -V unsorted -a keys\n"
            "    fi\n\n"
            '    if [ -n "$completions" ]; then',
        )
    )
