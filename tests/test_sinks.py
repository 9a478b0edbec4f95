"""Sinks: what they are told of runs, comparisons, federations and simulations, and their faults."""

import errno
import gc
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests import tasks
from tests.cli.program import RECIPE
from tests.together import together

import partavg
from partavg.cli import main
from partavg.config import Component
from partavg.config_toml import dump, parse
from partavg.session import Diverged
from partavg.sinks import SINKS, chosen
from partavg.sinks.jsonl import JsonLines
from partavg.sinks.sink import Feed, RunInfo, Sink, SinkFailed

ASKED = {"metrics": {"sinks": ["recorder"]}}


class Recorder:
    """A sink that keeps what it was told; at `fails` it raises what is given."""

    def __init__(self, events: list[tuple[str, Any]], **fails: Exception) -> None:
        self._events, self._fails = events, fails

    def _tell(self, what: str, value: Any) -> None:
        self._events.append((what, value))
        if what in self._fails:
            raise self._fails[what]

    def begin(self, about: RunInfo) -> None:
        self._tell("begin", about)

    def take(self, row: dict) -> None:
        self._tell("take", row)

    def end(self, summary: dict | None) -> None:
        self._tell("end", summary)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What a sink named recorder is told."""
    told: list[tuple[str, Any]] = []
    monkeypatch.setitem(SINKS, "recorder", lambda: Recorder(told))
    return told


def kinds(events: list[tuple[str, Any]]) -> list[str]:
    return [what for what, _ in events]


def test_a_run_tells_its_sinks_everything(tmp_path: Path, events: list) -> None:
    run = tasks.run(tmp_path / "run", **ASKED)
    rows = list(run)
    (_, about), *taken, (_, summary) = events
    assert kinds(events) == ["begin", *["take"] * 12, "end"]
    assert about.settings["averaging.interval"] == 4
    assert (about.label, about.step, about.steps) == ("run", 0, 12)
    assert about.folder == tmp_path / "run"
    assert [row for _, row in taken] == rows
    assert summary == run.folder.summary()


def test_a_run_that_stops_and_goes_on(tmp_path: Path, events: list) -> None:
    for row in tasks.run(tmp_path / "run", **ASKED):
        if row["step"] == 7:
            break
    assert events[-1] == ("end", None), "it may go on another day"
    events.clear()
    list(tasks.run(tmp_path / "run", resume=True, **ASKED))
    assert events[0][1].step == 6
    assert [row["step"] for what, row in events if what == "take"] == list(range(7, 13))
    events.clear()
    plain = {"batch_norm": False, "dropout": 0.0}
    run = tasks.run(tmp_path / "wild", training={"lr": 1e15}, model=plain, **ASKED)
    with pytest.raises(Diverged):
        list(run)
    assert events[-1] == ("end", None)


def test_sinks_that_are_handed_over(tmp_path: Path) -> None:
    told: list = []
    run = tasks.run(tmp_path / "run")
    rows = list(run.train("mine", [Recorder(told)]))
    assert told[0][1].label == "mine"
    assert [row for _, row in told[1:-1]] == rows


def test_a_comparison(tmp_path: Path, events: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE)
    command = ["compare", "recipe.toml", "--schemes", "periodic,partial", "--out", "out"]
    done = CliRunner().invoke(main, [*command, "--set", 'metrics.sinks=["recorder"]'])
    assert done.exit_code == 0, done.output
    assert kinds(events) == ["begin", *["take"] * 12, "end"] * 2
    assert [about.label for what, about in events if what == "begin"] == ["periodic", "partial"]
    assert [s["messages"] for what, s in events if what == "end"] == [3, 12]


def simulation() -> partavg.Simulation:
    x = torch.randn(40, 4)
    y = (x[:, 0] > 0).long()
    return partavg.Simulation(
        torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, (x, y), partavg.iid(y, 4, seed=0),
        schedule=partavg.Schedule.partial(2), lr=0.1, batch=5,
    )  # fmt: skip


def test_follow() -> None:
    told: list = []
    table = partavg.follow(simulation(), 5, every=2, name="mine", sinks=[Recorder(told)])
    assert kinds(told) == ["begin", "take", "take", "take", "end"]
    about = told[0][1]
    assert (about.label, about.steps, about.step, about.folder) == ("mine", 5, 0, None)
    assert about.settings["averaging.interval"] == 2
    assert [row for _, row in told[1:-1]] == table.rows
    assert told[-1][1]["peak_discrepancy"] == table["discrepancy"].max()


def test_any_function_of_a_row_is_a_sink(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list = []
    table = partavg.follow(simulation(), 5, every=2, sinks=[rows.append, print])
    assert rows == table.rows
    assert str(rows[0]) in capsys.readouterr().out
    with Feed([lambda row: rows.append("told")], RunInfo("run", 1)) as feed:
        feed.take({"step": 1})
    assert rows[-1] == "told"

    def fails(row: dict) -> None:
        raise KeyError("project")

    sentence = "sink fails failed at step 2 with KeyError: 'project'; mend it, or leave it out"
    with pytest.raises(SinkFailed, match=sentence):
        partavg.follow(simulation(), 5, every=2, sinks=[fails])


def test_sinks_by_name_in_python(events: list) -> None:
    partavg.follow(simulation(), 4, every=2, sinks=["recorder"])
    assert kinds(events) == ["begin", "take", "take", "end"]
    events.clear()
    partavg.follow(simulation(), 4, every=2, sinks=[{"name": "recorder"}])
    assert kinds(events) == ["begin", "take", "take", "end"]


def test_a_function_of_a_row_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list = []

    def kept(row: dict) -> None:
        rows.append(row)

    monkeypatch.setitem(SINKS, "recorder", kept)
    assert list(tasks.run(tmp_path / "run", **ASKED)) == rows


@pytest.mark.parametrize(
    ("sinks", "problem"),
    [
        (["recorde"], "sinks = 'recorde' is not known: did you mean 'recorder'?"),
        ([{"name": "recorder", "step": 1}], "unknown key 'sinks.recorder.step'"),
        ([{"step": 1}], "without a name: give it one"),
        ("recorder", r"sinks = 'recorder' is no list: write sinks=['recorder']"),
        (print, "is no list: write sinks="),
        (None, "sinks = None is no list"),
        ([3], "3 is no sink: give an object with the functions begin, take and end, or a function"),
        ([None], "None is no sink"),
        ([lambda: 0], "sink <lambda> cannot be called with a row: too many positional arguments"),
        ([Recorder], "sink Recorder is a class: make one of it, Recorder(…)"),
        (["tensorboard"], 'writes into a run folder, and there is none: say where, out="runs/run"'),
    ],
)
def test_what_is_no_sink_is_said_before_training(events: list, sinks: Any, problem: str) -> None:
    mine = simulation()
    with pytest.raises(ValueError, match=re.escape(problem)) as raised:
        partavg.follow(mine, 5, sinks=sinks)
    assert "\n" not in str(raised.value)
    assert mine.workers.step == 0
    assert not events


def test_a_federated_run(tmp_path: Path, events: list) -> None:
    pytest.importorskip("flwr")
    import tests.flower.conftest  # noqa: F401
    from tests.flower.federation import federation, server

    rows = list(server(federation(tmp_path, {"metrics.sinks": '["recorder"]'})))
    (_, about), *taken, (_, summary) = events
    assert about.settings["flower.job"] == about.label == "test"
    assert "data.name" not in about.settings
    assert [row for _, row in taken] == rows
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())


def written(processes, folder: Path) -> list:
    told: list = []
    SINKS["recorder"] = lambda: Recorder(told)
    list(tasks.run(folder, processes=processes, **ASKED))
    return kinds(told)


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    first, second = together(2, tmp_path, written, tmp_path / "run")
    assert first == ["begin", *["take"] * 12, "end"]
    assert second == []


def failing(at: str, error: Exception) -> Callable[[], Sink]:
    return lambda: Recorder([], **{at: error})


@pytest.mark.parametrize(
    ("at", "when"), [("begin", "at the start"), ("take", "at step 1"), ("end", "at the end")]
)
def test_a_sink_that_fails_stops_the_run_and_loses_nothing(
    at: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tasks.finish(tasks.run(tmp_path / "whole"))
    monkeypatch.setitem(SINKS, "recorder", failing(at, ConnectionError("no network")))
    told: list = []
    run = tasks.run(tmp_path / "run", **ASKED)
    sentence = f"sink Recorder failed {when} with ConnectionError: no network; mend it, or leave"
    with pytest.raises(SinkFailed, match=sentence):
        list(run.train(sinks=[Recorder(told)]))
    assert not told or kinds(told)[-1] == "end", "the others are ended"
    assert run.folder.finished == (at == "end")
    if at != "end":
        found = tasks.finish(tasks.run(tmp_path / "run", resume=True))
        found["config"] = found["config"].replace(b'sinks = ["recorder"]\n', b"")
        assert found == expected, "it goes on without the sink"


def test_the_command_says_which_sink_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(RECIPE)
    monkeypatch.setitem(SINKS, "recorder", failing("take", KeyError("project")))
    command = ["run", "recipe.toml", "--out", "out", "--set", 'metrics.sinks=["recorder"]']
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert done.stderr == (
        "partavg: sink Recorder failed at step 1 with KeyError: 'project'; mend it, or leave it "
        "out; continue with: partavg run recipe.toml --set 'metrics.sinks=[\"recorder\"]' "
        "--out out --resume\n"
    )
    resume = ["run", "out/config.toml", "--out", "out", "--resume", "--set", "metrics.sinks=[]"]
    assert CliRunner().invoke(main, resume).exit_code == 0


class Told(Recorder):
    """A sink that is told why a run stopped."""

    def stopped(self, error: BaseException) -> None:
        self._tell("stopped", error)


def test_why_a_run_stopped(tmp_path: Path, events: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "recorder", lambda: Told(events))
    next(iter(tasks.run(tmp_path / "run", **ASKED)))  # and no more
    gc.collect()
    assert kinds(events) == ["begin", "take", "stopped", "end"]
    assert isinstance(events[-2][1], GeneratorExit)
    events.clear()
    plain = {"batch_norm": False, "dropout": 0.0}
    with pytest.raises(Diverged) as raised:
        list(tasks.run(tmp_path / "wild", training={"lr": 1e15}, model=plain, **ASKED))
    assert events[-2:] == [("stopped", raised.value), ("end", None)]
    events.clear()
    list(tasks.run(tmp_path / "whole", **ASKED))
    assert "stopped" not in kinds(events)


def test_every_sink_is_ended_once_whatever_happens() -> None:
    told: list = []
    about, full = RunInfo("run", 1), OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(OSError, match="No space left"),
        Feed([Recorder(told), Recorder(told, take=full), Recorder(told)], about) as feed,
    ):
        feed.take({"step": 1})
    assert kinds(told) == [*["begin"] * 3, *["take"] * 2, *["end"] * 3]
    told.clear()
    with (
        pytest.raises(ZeroDivisionError) as raised,
        Feed([Recorder(told, end=ValueError("late")), Recorder(told)], about),
    ):
        raise ZeroDivisionError
    assert raised.value.__notes__ == [
        "sink Recorder failed at the end with ValueError: late; mend it, or leave it out"
    ]
    assert kinds(told) == [*["begin"] * 2, *["end"] * 2]
    told.clear()
    second = Recorder(told, begin=ValueError("no"))
    with pytest.raises(SinkFailed), Feed([Recorder(told), second, Recorder(told)], about):
        pass
    assert kinds(told) == ["begin", "begin", "end"], "what did not begin does not end"
    assert isinstance(second, Sink)


def test_lines_after_a_checkpoint_are_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path, lambda step: True)
    with Feed([first], RunInfo("run", 9)) as feed:
        feed.take({"step": 1})
        kept = first.length
        feed.take({"step": 2, "note": "ü"})
        assert first.length == path.stat().st_size, "on disk at once"
    again = JsonLines(path, lambda step: False, kept)
    with Feed([again], RunInfo("run", 9, 1)) as feed:
        feed.take({"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_a_name_that_is_not_known(events: list) -> None:
    with pytest.raises(ValueError, match=r"metrics\.sinks = 'recorde' is not known: did you mean"):
        parse({"metrics": {"sinks": ["recorde"]}})
    assert parse({"metrics": {"sinks": ["recorder"]}}).metrics.sinks == (Component("recorder"),)


class Every(Recorder):
    """A sink with options."""

    def __init__(self, *, steps: int, tags: tuple[str, ...] | None = None) -> None:
        super().__init__([])
        self.options = steps, tags


def test_options_of_a_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "every", Every)
    config = parse({"metrics": {"sinks": ["tensorboard", {"name": "every", "steps": 3}]}})
    assert 'sinks = ["tensorboard", {name = "every", steps = 3}]' in dump(config)
    assert parse(tomllib.loads(dump(config))) == config
    _, every = chosen(config.metrics)
    assert isinstance(every, Every)
    assert every.options == (3, None)
    for entry, problem in [
        ({"name": "every"}, r"metrics.sinks.every.steps is missing, and has no default: give it"),
        ({"name": "every", "step": 3}, "unknown key 'metrics.sinks.every.step': did you mean"),
        ({"name": "every", "steps": "3"}, r'metrics.sinks.every.steps = "3": input should be'),
        ({"name": "evry"}, r"metrics\.sinks = 'evry' is not known: did you mean 'every'"),
        ({"name": 3}, r"metrics\.sinks = 3: input should be a valid string"),
        ({"steps": 3}, r"metrics\.sinks has the entry \{steps = 3\} without a name: give it one"),
        (3, r"metrics\.sinks = \[3\]: input should be a name, or a table like"),
    ]:
        with pytest.raises(ValueError, match=problem):
            parse({"metrics": {"sinks": [entry]}})


def test_what_a_sink_does_to_its_row_is_no_matter_of_others() -> None:
    class Clears:
        def begin(self, about: RunInfo) -> None: ...
        def take(self, row: dict[str, Any]) -> None:
            row.clear()

        def end(self, summary: dict[str, Any] | None) -> None: ...

    events: list[tuple[str, Any]] = []
    with Feed([Clears(), Recorder(events)], RunInfo("mine", 1)) as feed:
        feed.take({"step": 1})
    assert ("take", {"step": 1}) in events
