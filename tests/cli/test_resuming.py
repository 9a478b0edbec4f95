"""The command that goes on; that it does is tested where commands are stopped."""

import shlex
from pathlib import Path

import pytest
from click.core import ParameterSource
from tests.commands import parse

from partavg.cli import main
from partavg.cli.resume import resuming_words

EVERYTHING = {
    "compare": "table1/cifar10-interval8 --schemes 'periodic, 4-parts' --tune lr --seeds 3 "
    "--tune training.batch --set model.width=8 --set='data.name=a b' --data '~/data sets' "
    "--out old --resume --force",
    "reproduce": "table1 --rows cifar10,imdb --seeds 3 --scale 0.02 --set=training.workers=2 "
    "--set model.width=8 --data sets --out old --resume --force",
    "run": "mine.toml --scheme periodic --set solver.base='{momentum = 0.5}' --set a.b=-1 "
    "--data sets --out old --resume --force",
    "sweep": "mine.toml --grid training.lr=0.1,0.2 --grid 'a.b=uniform(0, 1)' --schemes periodic "
    "--seeds 3 --tune-seeds 2 --budget 8 --validation 0.2 --search optuna --sampler gp "
    "--storage sqlite:///a.db --jobs 2 --set a.b=1 --data sets --out old --resume --force",
}
"""Each with all that it takes."""

NEW = Path("runs/a b")


def test_every_command_that_resumes_is_tested() -> None:
    resume = {n for n, c in main.commands.items() if "resume" in {p.name for p in c.params}}
    assert resume == EVERYTHING.keys()


@pytest.mark.parametrize("name", EVERYTHING)
def test_everything_that_was_given_is_given_again(name: str) -> None:
    before = parse(f"partavg {name} {EVERYTHING[name]}")
    for parameter in before.params:
        assert before.get_parameter_source(parameter) is ParameterSource.COMMANDLINE, parameter
    after = parse("partavg " + shlex.join(resuming_words(before, NEW)))
    assert after.params == {**before.params, "out": NEW, "resume": True, "force": False}


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("partavg compare", "compare --out o --resume"),
        ("partavg compare --force --out x --seeds 1", "compare --seeds 1 --out o --resume"),
        ("torchrun -m partavg run mine.toml", "run mine.toml --out o --resume"),
        ("partavg reproduce all --resume", "reproduce all --out o --resume"),
    ],
)
def test_nothing_else_is_said(line: str, again: str) -> None:
    assert shlex.join(resuming_words(parse(line), Path("o"))) == again
