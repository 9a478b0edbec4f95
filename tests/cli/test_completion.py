"""Settings complete after --set, in shells that people use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from click.shell_completion import ShellComplete
from tests.limits import seconds

from partavg.cli import main
from partavg.config import COMPONENTS, Component, Config
from partavg.config_toml import _is_solver, _options
from partavg.core.cuts import PARTITIONS

HERE = Path(__file__).resolve()
STORED = HERE.parents[2] / "src" / "partavg" / "cli" / "settings.json"


def values(hint: Any) -> list[str]:
    """What a key can be, where that is one of a few."""
    if hint is bool:
        return ["true", "false"]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    inner = [values(part) for part in get_args(hint) if get_origin(hint) is not tuple]
    return [value for found in inner for value in found]


def there_is() -> dict[str, Any]:
    """All settings, from what they belong to."""
    hints = get_type_hints(Config)
    sections = {
        name: {key: values(hint) for key, hint in get_type_hints(cls).items()}
        for name, cls in hints.items()
        if cls is not Component
    }
    sections["averaging"]["partition"] = sorted(PARTITIONS)
    components = {
        kind: {
            "default": default,
            "names": {
                name: {
                    key: "solver" if _is_solver(option.annotation) else values(option.annotation)
                    for key, option in _options(names[name], name).items()
                }
                for name in sorted(names)
            },
        }
        for kind, (names, default) in COMPONENTS.items()
    }
    return {"sections": sections, "components": components}


def test_the_settings_that_complete_are_those_that_there_are(record: bool) -> None:
    if record:
        STORED.write_text(json.dumps(there_is(), indent=1) + "\n")
    assert json.loads(STORED.read_text()) == there_is(), "pytest --record writes it anew"


def complete(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(main, {}, "partavg", "_PARTAVG_COMPLETE").get_completions(
        list(before), incomplete
    )
    return [item.value for item in found]


def test_keys_and_values() -> None:
    assert complete("run", "demo", "--set", "training.s") == [
        "training.steps=", "training.seed=", "training.scale=",
    ]  # fmt: skip
    assert complete("run", "demo", "--set", "engine.name=v") == ["engine.name=vmapped"]
    assert complete("compare", "--set", "averaging.shuffle=") == [
        "averaging.shuffle=true", "averaging.shuffle=false",
    ]  # fmt: skip
    assert "averaging.partition=layer" in complete("theory", "--set", "averaging.partition=")
    assert complete("run", "demo", "--set", "training.lr=") == []


def test_options_are_those_of_the_component_that_the_recipe_names(tmp_path: Path) -> None:
    assert "split.alpha=" in complete("run", "demo", "--set", "split."), "the demo's is dirichlet"
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[solver]\nname = "scaffold"\n[model]\nname = "mine.py:Net"\n')
    keys = complete("run", str(recipe), "--set", "solver.")
    assert "solver.momentum=" not in keys
    assert "solver.base.momentum=" in keys
    assert "solver.base.name=" in keys
    assert complete("run", str(recipe), "--set", "model.") == ["model.name="]
    chosen = ("run", str(recipe), "--set", "solver.name=sgd", "--set")
    assert "solver.momentum=" in complete(*chosen, "solver.")
    assert complete("run", str(tmp_path / "gone.toml"), "--set", "engine.ch") == ["engine.chunk="]


SHELLS = {
    "bash": """
{script}
line={line!r}
COMP_LINE="$line" COMP_POINT=${{#line}}
COMP_WORDS=({words}) COMP_CWORD={last}
_partavg_completion partavg
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": """
{script}
complete -C {line!r}
""",
    "zsh": """
compdef() {{ :; }}
compadd() {{ [[ "$*" == *keys* ]] && printf '%s\\n' "${{keys[@]}}" || printf '%s\\n' $completions }}
{script}
words=({words}) CURRENT={last}+1
_partavg_completion
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "words", "found"),
    [
        ("partavg run demo --set checkpoints.ev", "partavg run demo --set checkpoints.ev",
         "checkpoints.every="),
        ("partavg run demo --set engine.name=v", "partavg run demo --set engine.name = v",
         "engine.name=vmapped"),
    ],
)  # fmt: skip
def test_in_a_shell(tmp_path: Path, shell: str, line: str, words: str, found: str) -> None:
    """bash is told words that end at every =, and wants to hear only what comes after it."""
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} on this machine")
    program = tmp_path / "partavg"
    code = "from partavg.cli import main; main(prog_name='partavg')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    here = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(command: list[str], **extra: str) -> str:
        return subprocess.run(
            command, env=here | extra, capture_output=True, text=True, timeout=seconds()
        ).stdout

    script = run([str(program)], _PARTAVG_COMPLETE=f"{shell}_source")
    if shell != "bash":
        words = line
    text = SHELLS[shell].format(script=script, line=line, words=words, last=len(words.split()) - 1)
    expected = found.rpartition("=")[2] or found if shell == "bash" else found
    assert run([shell, "-c", text]).split() == [expected]
