"""Metrics for TensorBoard, read back from its files."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import tasks

from partavg.cli import main

pytest.importorskip("tensorboard")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ASKED = {"metrics": {"tensorboard": True}}


def scalars(folder: Path, *, unique: bool = True) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    read = {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}
    for tag, events in read.items():
        steps = [event.step for event in events]
        assert not unique or steps == sorted(set(steps)), f"{tag}: no step twice"
    return {tag: {event.step: event.value for event in events} for tag, events in read.items()}


def test_all_numbers_are_there(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", **ASKED)
    rows = list(run)
    found = scalars(tmp_path / "run" / "tensorboard")
    assert found.keys() == {
        "loss", "lr", "bytes", "messages", "discrepancy", "accuracy", "test_loss",
    }  # fmt: skip
    for tag, values in found.items():
        wanted = {row["step"]: row[tag] for row in rows if tag in row}
        assert values == pytest.approx(wanted)


def test_a_resumed_run_has_no_step_twice(tmp_path: Path) -> None:
    for row in tasks.run(tmp_path / "run", **ASKED):
        if row["step"] == 8:  # the last checkpoint is that of step 6
            break
    list(tasks.run(tmp_path / "run", resume=True, **ASKED))
    found = scalars(tmp_path / "run" / "tensorboard")
    assert list(found["loss"]) == list(range(1, 13))
    plain = {row["step"]: row["loss"] for row in tasks.run(tmp_path / "plain")}
    assert found["loss"] == pytest.approx(plain)
    list(tasks.run(tmp_path / "run", force=True, **ASKED))
    assert list(scalars(tmp_path / "run" / "tensorboard")["loss"]) == list(range(1, 13))


@pytest.mark.parametrize("command", ["run", "compare"])
def test_without_tensorboard_a_sentence_says_how_to_install_it(
    command: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("partavg.sinks.needs.find_spec", lambda name: None)
    done = CliRunner().invoke(main, [command, "demo", "--set=metrics.tensorboard=true"])
    assert done.exit_code == 2
    assert done.stderr == (
        "partavg: sink 'tensorboard' needs TensorBoard, which is not installed: "
        "pip install 'partavg[tensorboard]'\n"
    )
    assert not (tmp_path / "runs").exists()
