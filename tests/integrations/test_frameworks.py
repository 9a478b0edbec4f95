"""What all integrations have in common: examples that run, and packages that need not be there."""

import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from tests.ranks import Ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = {
    "huggingface": ("transformers", "huggingface"),
    "lightning": ("lightning", "lightning"),
    "accelerate": ("accelerate", "huggingface"),
}


def example(rank: int, name: str) -> str:
    """What an example prints, in one epoch or two steps."""
    sys.path.insert(0, str(EXAMPLES))
    program = import_module(name)
    for constant, small in {"STEPS": 2, "EPOCHS": 1}.items():
        if hasattr(program, constant):
            setattr(program, constant, small)
    printed = StringIO()
    with redirect_stdout(printed):
        program.main()
    return printed.getvalue()


@pytest.mark.parametrize("name", ["huggingface_trainer", "lightning_module", "accelerate_loop"])
def test_examples_run_on_two_ranks(name: str, ranks: Ranks) -> None:
    said, *silent = ranks(example, name)
    assert said.splitlines()[-1].startswith("2 ranks, ")
    assert not any("of the averaged model" in other for other in silent)
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len([line for line in lines if "PartialAveraging" in line and "`" not in line]) <= 3


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_that_is_not_installed_is_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {"accelerate", "lightning", "pytorch_lightning", "transformers"}
    imported = {module for module in sys.modules if module.partition(".")[0] in packages}
    for module in packages | imported:  # by other tests, with all that is in them
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"partavg.integrations.{name}", raising=False)
    package, extra = FRAMEWORKS[name]
    with pytest.raises(ModuleNotFoundError, match=rf"(?i){package}.*'partavg\[{extra}\]'$"):
        import_module(f"partavg.integrations.{name}")


def test_partavg_itself_imports_no_framework() -> None:
    said = "import sys, partavg, partavg.integrations, partavg.integrations.own_state"
    check = f"{said}; print({set(FRAMEWORKS) | {'transformers'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("set()\n", "")
