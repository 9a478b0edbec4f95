"""`partavg theory` as a person uses it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.program import RECIPE, partavg

from partavg.cli import main
from partavg.theory import Constants, Theorem2


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def theory(*arguments: object) -> Result:
    """The command in this process, with the least work."""
    quick = ["--workers", "1", "--set", "engine.name=looped"]
    return CliRunner().invoke(main, ["theory", *map(str, arguments), *quick])


def test_a_real_process_tells_and_writes(recipe: Path, tmp_path: Path) -> None:
    options = ["--steps", "3", "--workers", "1", "--json", "found.json"]
    done = partavg("theory", recipe, *options, cwd=tmp_path)
    assert "measuring smoothness" in done.stdout
    assert "recipe after 3 steps: 4 workers, interval 4 in 4 parts" in done.stdout
    assert "6η² τ(τ−1) Σ_j L_j² κ_j²" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    constants = Constants(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["constants"].items()
        }
    )
    bound = Theorem2((0.25,) * 4).bound(constants, lr=0.05, interval=4, steps=9)
    assert found["terms"] == pytest.approx(bound.terms)
    assert (found["largest_lr"], found["holds"]) == (bound.largest_lr, bound.holds)
    assert len(found["parts"]) == 4
    limit = f"Theorem 2 holds up to a learning rate of {bound.largest_lr:.3g} at interval 4."
    assert limit in done.stdout


def test_an_even_split_is_judged_by_the_first_theorem(recipe: Path) -> None:
    options = ["--set", "split.name=iid", "--set", "training.lr=1e-4", "--scheme", "periodic"]
    said = theory(recipe, *options).output
    assert "(η/m) Σ_j L_j σ_j²" in said
    assert "κ" not in said
    assert "interval 4 in 1 parts" in said
    assert "Theorem 1 holds up to a learning rate of" in said
    assert "The learning rate 0.0001 is small enough; with it, the theorem allows intervals" in said
    assert "momentum" not in said


def test_many_parts_are_summed_up_and_departures_are_named(recipe: Path) -> None:
    changes = ["averaging.interval=9", "solver.momentum=0.5", "participation.fraction=0.5"]
    said = theory(recipe, *(f"--set={change}" for change in changes), "--set=training.lr=50").output
    assert "median" in said
    assert "times too large: the bound is not guaranteed" in said
    assert "with it, the theorem would allow no interval at all" in said
    assert "With momentum 0.5, the learning rate acts like 100" in said
    assert "does not cover momentum and workers that are not active" in said


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--steps", 12], 2, "--steps 12 leaves no step of the recipe's 12: use 0 to 11"),
        (["--json", "recipe.toml"], 2, "recipe.toml does not end in .json: name the file to write"),
        (["--set", "training.lr=-1"], 2, "training.lr = -1"),
        (["--set", 'averaging.local=["*.bias"]'], 2, "never averaged, and the theorems' proofs do"),
        (["--steps", 9, "--set", "training.lr=1e30"], 3, "is not finite at step"),
    ],
)
def test_mistakes(recipe: Path, arguments: list[object], code: int, sentence: str) -> None:
    done = theory(recipe, *arguments)
    assert done.exit_code == code
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) <= 2


def test_no_worker_measures_nothing(recipe: Path) -> None:
    done = CliRunner().invoke(main, ["theory", str(recipe), "--workers", "0"])
    assert done.exit_code == 2
    assert "--workers 0 measures nothing: use 1 or more" in done.output


def test_what_the_theorems_do_not_cover_is_said(recipe: Path) -> None:
    settings = ("solver.name=fedprox", "solver.base.momentum=0.9", "training.scale=0.5")
    found = theory(recipe, *(part for each in settings for part in ("--set", each)))
    said = " ".join(found.output.split())
    assert "its proof does not cover the solver fedprox and momentum. Without that, it" in said
    assert "With momentum 0.9, the learning rate acts like 0.5" in said
    assert "Scaled to 0.5 of the recipe's budget and data." in said


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["averaging.shuffle=true"], "parts in a shuffled order"),
        (["averaging.delay=1"], "averages that arrive late"),
        (["pace.name=fixed", "pace.counts=[2, 4]"], "workers of unequal pace"),
        (["adapt.name=adacomm"], "an interval that changes"),
        (["lr_schedule.warmup=2"], "a learning rate that changes"),
    ],
)
def test_theorem_1_is_not_said_to_hold_where_its_proof_does_not(
    recipe: Path, tmp_path: Path, settings: list[str], what: str
) -> None:
    kept = tmp_path / "found.json"
    usual = ["split.name=iid", "training.lr=1e-4"]
    changes = [word for each in (*usual, *settings) for word in ("--set", each)]
    done = theory(recipe, *changes, "--json", kept)
    said = " ".join(done.output.split())
    assert "Theorem 1 holds" not in said
    assert f"Theorem 1 promises nothing here: its proof does not cover {what}" in said
    found = json.loads(kept.read_text())
    assert found["holds"] is False
    assert [one[: len(what)] for one in found["not_covered"]] == [what]
