"""Runs and comparisons of a user's own module, from Python."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import own
from torch import nn
from torch.nn import functional as F

import partavg
from partavg import Patience, Schedule, Simulation
from partavg.metrics.metric import Row

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] * X[:, 1] > 0).long()
TEST = X[80:], Y[80:]


def simulation(schedule: Schedule | None = None, seed: int = 0, **options: Any) -> Simulation:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    split = partavg.iid(Y[:80], workers=4, seed=seed)
    given = {"lr": 0.1, "batch": 5, "solver": partavg.SGD(0.9), "seed": seed, "engine": "looped"}
    return Simulation(
        model, F.cross_entropy, (X[:80], Y[:80]), split,
        schedule=schedule or Schedule.partial(4), **{**given, **options},
    )  # fmt: skip


def left(folder: Path) -> tuple[bytes, Row, dict[str, Any]]:
    """All that must be the same for the same run."""
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    model = torch.load(folder / "model.pt", weights_only=True)
    return (
        (folder / "metrics.jsonl").read_bytes(),
        summary,
        {k: v.tolist() for k, v in model.items()},
    )


class Interrupt:
    """A sink that presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def begin(self, about: partavg.RunInfo) -> None:
        pass

    def take(self, row: Row) -> None:
        if row["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self, summary: Row | None) -> None:
        pass


def test_a_followed_simulation_leaves_a_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    table = partavg.follow(simulation(), 20, test=TEST, every=5, out=out)
    assert table["step"].tolist() == [5, 10, 15, 20]
    run = partavg.load_run(out)
    assert run.metrics["accuracy"].tolist() == table["accuracy"].tolist()
    assert run.summary["accuracy"] == table["accuracy"][-1]
    assert run.summary["train_loss"] > 0
    assert run.config["averaging"]["interval"] == 4
    assert run.config["solver"]["momentum"] == 0.9
    assert "accuracy" in (out / "report.html").read_text(encoding="utf-8")
    whole = partavg.follow(simulation(), 20, test=TEST, every=5)
    assert whole["loss"].tolist() == table["loss"].tolist()


def test_an_interrupt_saves_and_resume_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    partavg.follow(simulation(), 20, test=TEST, every=2, out=tmp_path / "whole")
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        partavg.follow(simulation(), 20, test=TEST, every=2, out=out, sinks=[Interrupt(8)])
    assert not (out / "summary.json").exists()
    with pytest.raises(ValueError, match="unfinished run at step 8: use resume=True"):
        partavg.follow(simulation(), 20, test=TEST, every=2, out=out)
    again = partavg.follow(simulation(), 20, test=TEST, every=2, out=out, resume=True)
    assert again["step"].tolist() == list(range(2, 21, 2))
    assert left(out) == left(tmp_path / "whole")
    finished = simulation()
    partavg.follow(finished, 20, test=TEST, every=2, out=out, resume=True)
    assert finished.workers.step == 20, "a finished run is loaded, not trained again"
    with pytest.raises(ValueError, match="holds a finished run: use force=True"):
        partavg.follow(simulation(), 20, test=TEST, every=2, out=out)
    partavg.follow(simulation(), 20, test=TEST, every=2, out=out, force=True)
    assert left(out) == left(tmp_path / "whole")


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    partavg.follow(simulation(), 20, test=TEST, every=5, out=tmp_path / "whole")
    out = tmp_path / "longer"
    partavg.follow(simulation(), 10, test=TEST, every=5, out=out)
    partavg.follow(simulation(), 20, test=TEST, every=5, out=out, resume=True)
    assert left(out) == left(tmp_path / "whole")
    assert partavg.load_run(out).config["training"]["steps"] == 20
    with pytest.raises(ValueError, match="started for 20 steps, and until = 15 is less"):
        partavg.follow(simulation(), 15, test=TEST, every=5, out=out, resume=True)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"seed": 1}, "training.seed"),
        ({"lr": 0.2}, "training.lr"),
        ({"batch": 4}, "training.batch"),
        ({"solver": partavg.SGD(0.5)}, "solver.momentum"),
        ({"schedule": Schedule.periodic(4)}, "averaging.parts"),
        ({"weights": "samples"}, "averaging.weights"),
        ({"delay": 1}, "averaging.delay"),
    ],
)
def test_another_simulation_does_not_go_on(
    tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    out = tmp_path / "run"
    partavg.follow(simulation(), 4, out=out)
    before = (out / "config.toml").read_text()
    with pytest.raises(ValueError, match=f"was started with {key} = "):
        partavg.follow(simulation(**options), 8, out=out, resume=True)
    assert (out / "config.toml").read_text() == before
    assert (out / "summary.json").exists()


def test_divergence_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(partavg.Diverged, match=r"not finite at step .*lower lr = 1e\+30"):
        partavg.follow(simulation(lr=1e30), 200, test=TEST)
    with pytest.raises(partavg.Diverged):
        partavg.follow(simulation(lr=1e30), 200, test=TEST, out=tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_early_stopping(tmp_path: Path) -> None:
    seen: list[int] = []

    def stop(row: Row) -> bool:
        seen.append(row["step"])
        return bool(row["step"] >= 12)

    table = partavg.follow(simulation(), 40, every=4, stop=stop)
    assert table["step"].tolist() == seen == [4, 8, 12]
    out = tmp_path / "stopped"
    partavg.follow(simulation(), 40, every=4, stop=stop, out=out)
    summary = partavg.load_run(out).summary
    assert (summary["steps"], summary["stopped_at"]) == (12, 12)
    with pytest.raises(ValueError, match="is no function of a row"):
        partavg.follow(simulation(), 40, stop=5)  # type: ignore[arg-type]


def test_patience_counts_on_after_a_resume(tmp_path: Path) -> None:
    def followed(out: Path, *sinks: Interrupt, resume: bool = False) -> None:
        partavg.follow(
            simulation(lr=1.0), 400, test=TEST, every=2, stop=partavg.Patience("accuracy", 6),
            out=out, sinks=sinks, resume=resume, best="accuracy",
        )  # fmt: skip

    followed(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        followed(tmp_path / "cut", Interrupt(10))
    followed(tmp_path / "cut", resume=True)
    whole = left(tmp_path / "whole")
    assert whole == left(tmp_path / "cut")
    assert whole[1]["stopped_at"] == whole[1]["best_step"] + 12 < 400


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    table = partavg.follow(simulation(lr=1.0), 27, test=TEST, every=3, out=out, best="accuracy")
    summary = partavg.load_run(out).summary
    assert summary["best_accuracy"] == table["accuracy"].max() > table["accuracy"][-1]
    assert summary["best_step"] == table["step"][table["accuracy"].argmax()]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model.load_state_dict(torch.load(out / "best.pt", weights_only=True))
    found = partavg.evaluate(model, F.cross_entropy, TEST)
    assert found.accuracy == pytest.approx(summary["best_accuracy"])
    lowest = partavg.follow(
        simulation(), 30, test=TEST, every=3, out=tmp_path / "b", best="test_loss"
    )
    assert partavg.load_run(tmp_path / "b").summary["best_test_loss"] == lowest["test_loss"].min()
    with pytest.raises(ValueError, match="give out"):
        partavg.follow(simulation(), 30, test=TEST, best="accuracy")
    with pytest.raises(ValueError, match="did you mean 'accuracy'"):
        partavg.follow(simulation(), 30, test=TEST, best="acuracy", out=tmp_path / "c")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"best": "accuracy"}, "best goes by 'accuracy', .*: give test samples"),
        ({"best": "train_loss", "test": TEST}, "best goes by 'train_loss', .*: use one like acc"),
        ({"best": "clients_loss", "test": TEST}, "best goes by 'clients_loss', .*: give the test"),
        ({"stop": Patience("test_loss", 2)}, "stop goes by 'test_loss', .*: give test samples"),
        ({"stop": Patience("acc", 2, "higher")}, "stop goes by 'acc', .*: use one like accuracy"),
    ],
)
def test_what_is_not_measured_decides_nothing(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        partavg.follow(simulation(), 6, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_the_average_of_personal_models_is_never_the_best(tmp_path: Path) -> None:
    own = simulation(local=["*bias"])
    with pytest.raises(ValueError, match=r"with local parameters nobody has the averaged model"):
        partavg.follow(own, 6, test=TEST, out=tmp_path / "run", best="accuracy")
    partavg.follow(own, 6, test=TEST, out=tmp_path / "run", best="clients_accuracy")
    assert (tmp_path / "run" / "best.pt").exists()


def test_schemes_and_seeds_side_by_side(tmp_path: Path) -> None:
    found = partavg.compare(simulation, 16, interval=4, seeds=2, test=TEST, every=8, out=tmp_path)
    assert [result.scheme for result in found.results] == ["periodic", "partial", "synchronous"]
    assert all(len(result.summaries) == 2 for result in found.results)
    assert "partial averaging ended" in str(found)
    assert f"report: {tmp_path / 'report.html'}" in str(found)
    assert "partial" in found._repr_html_()
    assert found.run("partial", 1).config["training"]["seed"] == 1
    assert "<svg" in found.figure("loss").html
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Comparison of periodic, partial and synchronous" in page
    with pytest.raises(ValueError, match="no run partial 7: use one of periodic 0"):
        found.run("partial", 7)


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    given: dict[str, Any] = {"interval": 4, "test": TEST, "every": 4}
    partavg.compare(simulation, 16, **given, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        partavg.compare(simulation, 16, **given, out=tmp_path / "cut", sinks=[Interrupt(8)])
    assert not (tmp_path / "cut" / "partial-seed0").exists()
    partavg.compare(simulation, 16, **given, out=tmp_path / "cut", resume=True)
    for name in ("periodic-seed0", "partial-seed0", "synchronous-seed0"):
        assert left(tmp_path / "cut" / name) == left(tmp_path / "whole" / name)
    with pytest.raises(ValueError, match="holds a finished run: use force=True"):
        partavg.compare(simulation, 16, **given, out=tmp_path / "cut")


def test_anything_can_be_compared(tmp_path: Path) -> None:
    def made(mu: float, seed: int) -> Simulation:
        return simulation(seed=seed, solver=partavg.FedProx(mu=mu))

    found = partavg.compare(made, 8, schemes={"weak": 0.01, "strong": 1.0}, test=TEST, out=tmp_path)
    assert found.run("strong").config["solver"]["mu"] == 1.0


def test_simulations_are_let_go_of_before_the_next_is_made(tmp_path: Path) -> None:
    made: list[weakref.ref[Simulation]] = []

    def alone(schedule: Schedule, seed: int) -> Simulation:
        assert not any(one() for one in made)
        found = simulation(schedule, seed)
        made.append(weakref.ref(found))
        return found

    gc.collect()
    gc.disable()  # a GPU's memory does not wait for it
    try:
        partavg.compare(alone, 4, interval=2, test=TEST, every=2, out=tmp_path)
    finally:
        gc.enable()
    assert len(made) == 3


def test_models_that_draw_are_compared_with_those_that_do_not(tmp_path: Path) -> None:
    class Noisy(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * (1 + 0.1 * torch.rand(1))

    def make(model: type[nn.Linear], seed: int) -> Simulation:
        torch.manual_seed(seed)
        split = partavg.iid(Y[:80], workers=4, seed=seed)
        return Simulation(
            model(4, 2), F.cross_entropy, (X[:80], Y[:80]), split, schedule=Schedule.partial(2),
            lr=0.1, seed=seed, engine="auto",
        )  # fmt: skip

    with pytest.warns(UserWarning, match="different models"):
        found = partavg.compare(make, 4, schemes={"plain": nn.Linear, "noisy": Noisy}, out=tmp_path)
    assert not found.diverged
    assert found.run("noisy").config["engine"]["name"] == "looped"


def test_one_run_that_diverges_does_not_end_the_others(tmp_path: Path) -> None:
    def made(lr: float, seed: int) -> Simulation:
        return simulation(seed=seed, lr=lr)

    found = partavg.compare(made, 60, schemes={"far": 1e30, "near": 0.1}, test=TEST, out=tmp_path)
    assert list(found.diverged) == ["far"]
    assert "far diverged: " in str(found)
    assert [len(result.summaries) for result in found.results] == [0, 1]


def test_seeds_that_change_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds 0 and 1 give the same simulation"):
        partavg.compare(lambda s, _: simulation(s), 4, interval=2, seeds=2, out=tmp_path)


def test_schemes_that_begin_apart_are_told(tmp_path: Path) -> None:
    def made(schedule: Schedule, seed: int) -> Simulation:
        return simulation(schedule, seed + schedule.parts)

    with pytest.warns(UserWarning, match="the schemes begin with different models for seed 0"):
        partavg.compare(made, 4, interval=2, out=tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "comparison needs schemes"),
        ({"interval": 2, "schemes": {"a": 1}}, "give one of the two"),
        ({"schemes": ["periodic"]}, "is no dict of names"),
        ({"schemes": {"../x": 1}}, "cannot name a folder"),
        ({"interval": 2, "seeds": []}, "gives no run"),
        ({"interval": 2, "seeds": [1, 1]}, "or one twice"),
        ({"interval": 0}, "interval 0 is below 1"),
        ({"interval": 2, "every": 0}, "every = 0 is no whole number from 1"),
        ({"interval": 2, "seeds": 2.5}, "seeds = 2.5 is no whole number from 1"),
        ({"interval": 2, "seeds": None}, "seeds = None is no whole number from 1"),
        ({"interval": 2, "seeds": [-1]}, "seed -1 is no whole number from 0"),
        ({"interval": 2, "simulation": 3}, "3 is no function of a scheme and a seed"),
        ({"interval": 2, "until": 2.5}, "until = 2.5 is no whole number from 1"),
        ({"interval": 2, "resume": True, "out": None}, "give out"),
        ({"interval": 2, "simulation": lambda schedule, seed: None}, "gave NoneType for scheme"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    given = {"simulation": simulation, "until": 4, "out": tmp_path / "x", **options}
    with pytest.raises(ValueError, match=sentence):
        partavg.compare(**given)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: partavg.follow(simulation(), "10"), "until = '10' is no whole number"),
        (lambda: partavg.follow(3, 10), "3 is no simulation"),
        (lambda: partavg.follow(simulation(), 4, out=3), "out = 3 names no folder"),
        (lambda: partavg.run(3), "recipe 3 is none"),
        (lambda: partavg.run("demo", set=["a=1"]), "is no dict"),
        (lambda: partavg.run("demo", scheme=3), "scheme 3 cannot name a folder"),
    ],
)
def test_mistakes_in_types_are_told(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_policies_of_no_whole_numbers_are_told() -> None:
    program = """
import partavg
for make in (lambda: partavg.Schedule.partial("4"), lambda: partavg.Participation(8, 2.5)):
    try:
        make()
    except ValueError as error:
        print(error)
"""  # elsewhere, since here the tests check all types of the core themselves
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "interval '4' is no whole number" in said.stdout
    assert "active 2.5 is no whole number" in said.stdout


def test_threads_hear_no_signals_and_train_all_the_same() -> None:
    tables: list[partavg.Table] = []
    thread = threading.Thread(target=lambda: tables.append(partavg.follow(simulation(), 4)))
    thread.start()
    thread.join()
    assert tables[0]["step"].tolist() == [4]


def test_a_recipe_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"training.steps": 4, "training.workers": 4, "metrics.evaluate_every": 2}
    settings |= {"averaging.shuffle": True, "metrics.local_accuracy": ("first",)}
    results = partavg.run("demo", scheme="periodic", set=settings, out=tmp_path / "run")
    assert results.summary["steps"] == 4
    assert results.config["averaging"]["shuffle"] is True
    assert results.config["metrics"]["local_accuracy"] == ["first"]
    assert results.config["averaging"]["parts"] == 1
    assert (tmp_path / "run" / "report.html").exists()
    with pytest.raises(ValueError, match="use force=True"):
        partavg.run("demo", scheme="periodic", set=settings, out=tmp_path / "run")


def test_a_run_made_in_python_is_no_recipe(tmp_path: Path) -> None:
    partavg.follow(simulation(), 4, out=tmp_path)
    with pytest.raises(ValueError, match="made in Python: run that program again"):
        partavg.run(tmp_path / "config.toml")


@pytest.fixture(params=["params", "schedule", "seed", "solver", "nothing"])
def foreign(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str]:
    """States that are not those of `simulation()`, and what is said of them."""
    wide = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    split = partavg.iid(Y[:80], workers=4, seed=0)
    other = Simulation(
        wide, F.cross_entropy, (X[:80], Y[:80]), split, schedule=Schedule.partial(4), lr=0.1
    ).state()
    del other["settings"]  # as 0.1 saved it
    return {
        "params": (other, "has params"),
        "schedule": (simulation(Schedule.partial(2)).state(), "averaging.interval = 2"),
        "seed": (simulation(seed=1).state(), "training.seed = 1"),
        "solver": (simulation(solver=partavg.adam()).state(), "solver.name"),
        "nothing": ({"step": 3}, "no state of a simulation"),
    }[request.param]


def test_a_state_of_another_simulation_is_refused(foreign: tuple[dict[str, Any], str]) -> None:
    state, sentence = foreign
    with pytest.raises(ValueError, match=sentence):
        simulation().load(state)


def test_what_decides_must_be_measured(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stop = partavg.Patience("accuracy", 2)
    with pytest.raises(ValueError, match=r"stop goes by 'accuracy', .*: give test samples"):
        partavg.follow(simulation(), 8, stop=stop)
    with pytest.raises(ValueError, match=r"best goes by 'test_loss', .*: give test samples"):
        partavg.follow(simulation(), 8, out=out, best="test_loss")
    personal: dict[str, Any] = {"local": ["2.*"]}
    for options in ({"best": "accuracy"}, {"stop": stop}):
        with pytest.raises(ValueError, match="with local parameters nobody has the averaged model"):
            partavg.follow(simulation(**personal), 8, test=TEST, out=out, **options)
    with pytest.raises(ValueError, match="best goes by 'clients_accuracy'"):
        partavg.follow(simulation(), 8, test=TEST, out=out, best="clients_accuracy")
    with pytest.raises(ValueError, match="stop goes by 'mine', which this run does not measure"):
        partavg.follow(simulation(), 8, test=TEST, stop=partavg.Patience("mine", 2, "lower"))
    assert not out.exists(), "all of it is said before anything is written"
    partavg.follow(simulation(**personal), 8, test=TEST, out=out, best="clients_accuracy")
    assert (out / "best.pt").exists()
    numbers = torch.randn(120, 1)
    line = Simulation(nn.Linear(4, 1), F.mse_loss, (X, numbers), [range(60), range(60, 120)],
                      schedule=Schedule.partial(2), lr=0.1)  # fmt: skip
    with pytest.raises(ValueError, match="metric 'accuracy' cannot be measured"):
        partavg.follow(line, 8, test=(X, numbers), stop=stop)


def test_a_run_that_stops_early_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    table = partavg.follow(simulation(), 40, every=5, stop=lambda row: row["step"] == 10)
    assert table["step"][-1] == 10
    assert "run: step 10/40, loss" in (said := capsys.readouterr().out)
    assert said.rstrip().endswith("stopped early")


def test_settings_of_a_recipe_are_values_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    extra = [{"name": "top_k", "k": 2}]
    settings = {"training.steps": 4, "metrics.timings": True, "metrics.extra": extra}
    done = partavg.run(".", set=settings)
    assert done.path == Path("runs") / f"{tmp_path.name}-1"
    assert done.config["metrics"]["timings"] is True
    assert done.config["metrics"]["extra"][0]["k"] == 2
    assert {"top_k", "timings"} <= done.summary.keys()
