"""docs/two-machines.md: the program that runs its commands finds them all, and they can be run."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
from torch.distributed.run import get_args_parser

from partavg.cli import main

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def program() -> ModuleType:
    path = ROOT / "benchmarks" / "two_machines.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        spec = importlib.util.spec_from_file_location("two_machines", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def commands(text: str) -> list[list[str]]:
    """The words of each command; a backslash goes on in the next line."""
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]


def test_all_commands_of_the_page_are_run(program: ModuleType) -> None:
    page = program.PAGE.read_text()
    blocks = program.blocks(page)
    assert len(blocks) == page.count("```sh")
    assert [b.commands for b in blocks] == re.findall(r"```sh\n(.*?)```", page, re.S)
    assert {block.place for block in blocks} == set(program.PLACES)
    with pytest.raises(ValueError, match="'' is no place: use on both, "):
        program.blocks("```sh\nls\n```")


def test_commands_of_the_page_can_be_parsed(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    own_loop = importlib.import_module("own_loop")

    def begin(*_: object, **__: object) -> None:
        raise InterruptedError("the words were understood")

    monkeypatch.setattr(own_loop.dist, "init_process_group", begin)
    found = set()
    for block in program.blocks(program.PAGE.read_text()):
        for tool, *words in commands(block.commands):
            found.add(tool)
            if tool == "torchrun":
                parsed = get_args_parser().parse_args(words)
                assert (parsed.nnodes, parsed.training_script) == ("2", "examples/own_loop.py")
                with pytest.raises(InterruptedError):
                    own_loop.main(parsed.training_script_args)
            elif tool == "partavg":
                name, *rest = words
                command = main.commands[name]
                command.make_context(name, rest, parent=click.Context(main))
    assert found == {"export", "partavg", "python", "torchrun"}


def test_the_example_goes_on_from_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    own_loop = importlib.import_module("own_loop")
    words = ["--interval", "4", "--checkpoints", str(tmp_path)]

    def said(epochs: int) -> list[str]:
        monkeypatch.setattr(own_loop, "EPOCHS", epochs)
        torch.manual_seed(0)
        own_loop.main(words)
        return capsys.readouterr().out.splitlines()

    whole = said(2)
    (tmp_path / "0" / "2.pt").unlink()
    again = said(2)
    assert again[0] == "rank 0 goes on after epoch 1"
    assert again[1].startswith("1 ranks, 750 steps, ")
    assert again[-1] == whole[-1]  # the accuracy
