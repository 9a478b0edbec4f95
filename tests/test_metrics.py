import json
from itertools import count
from pathlib import Path

import pytest
import torch
from tests import tasks

from partavg import build, evaluation
from partavg.backends.simulate import Simulation
from partavg.metrics import meter


def rows_of(folder: Path, **sections: dict) -> list[dict]:
    run = tasks.run(folder, **sections)
    for _ in run:
        pass
    return list(run.folder.rows())


def simulated(steps: int, **sections: dict) -> Simulation:
    config = tasks.config(**sections)
    simulation = build.simulation(config, tasks.data(), build.device(config))
    for _ in simulation.train(steps):
        pass
    return simulation


def test_what_costs_is_off_unless_asked_for(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "run", metrics={"discrepancy_every": 0})
    always = {"step", "loss", "lr", "bytes", "messages"}
    assert all(row.keys() - {"accuracy", "test_loss"} == always for row in rows)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not {"timings", "peak_discrepancy", "accuracy_best"} & summary.keys()


def test_accuracy_of_local_models(tmp_path: Path) -> None:
    views = {"local_accuracy": ["best", "mean", "first", "all"]}
    rows = rows_of(tmp_path / "run", metrics=views)
    simulation = simulated(12)
    local = [simulation.evaluate_worker(row, tasks.data().test).accuracy for row in range(4)]
    assert len(set(local)) > 1
    assert rows[-1]["accuracy_all"] == local
    assert rows[-1]["accuracy_best"] == max(local)
    assert rows[-1]["accuracy_mean"] == pytest.approx(sum(local) / 4)
    assert rows[-1]["accuracy_first"] == local[0]
    assert ["accuracy_all" in row for row in rows] == ["accuracy" in row for row in rows]
    first = rows_of(tmp_path / "first", metrics={"local_accuracy": ["first"]})
    assert first[-1]["accuracy_first"] == local[0]


def test_discrepancy_of_the_parts_adds_up(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "run", metrics={"discrepancy_every": 3, "discrepancy_parts": True})
    assert [row["step"] for row in rows if "discrepancy" in row] == [3, 6, 9, 12]
    for row in rows[2::3]:
        assert len(row["discrepancy_parts"]) == 4
        assert sum(row["discrepancy_parts"]) == pytest.approx(row["discrepancy"], rel=1e-5)
        assert row["discrepancy_parts"][row["step"] % 4] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("parts", [1, 4])
def test_losses_at_the_end_of_a_round_are_those_before_averaging(
    tmp_path: Path, parts: int
) -> None:
    """Figure 2: after a full averaging all local models would be the averaged one."""
    averaging = {"interval": 4, "parts": parts, "partition": "contiguous"}
    rows = rows_of(tmp_path / "run", averaging=averaging, metrics={"round_losses_every": 2})
    assert [row["step"] for row in rows if "loss_global" in row] == [8]
    if parts == 1:
        rows = rows_of(tmp_path / "one", averaging=averaging, metrics={"round_losses_every": 1})
        # Four steps without any averaging: the local models that periodic averaging starts from.
        apart = simulated(4, averaging={**averaging, "interval": 100})
        train = tasks.data().train
        local = [apart.evaluate_worker(row, train).loss for row in range(4)]
        assert rows[3]["loss_smallest_local"] == pytest.approx(min(local), rel=1e-5)
        assert rows[3]["loss_global"] == pytest.approx(apart.evaluate(train).loss, rel=1e-5)
        assert rows[3]["loss_global"] != pytest.approx(min(local), rel=1e-3)


def test_losses_at_the_end_of_a_round_on_some_samples(tmp_path: Path) -> None:
    metrics = {"round_losses_every": 1, "round_losses_samples": 10}
    averaging = {"interval": 4, "parts": 1}
    rows = rows_of(tmp_path / "run", averaging=averaging, metrics=metrics)
    apart = simulated(4, averaging={**averaging, "interval": 100})
    inputs, targets = tasks.data().train
    some = [place * len(inputs) // 10 for place in range(10)]
    found = apart.evaluate((inputs[some], targets[some])).loss
    assert rows[3]["loss_global"] == pytest.approx(found, rel=1e-5)


def test_timings_cover_the_run_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = rows_of(tmp_path / "plain")
    clock = count()
    monkeypatch.setattr(meter, "perf_counter", lambda: next(clock))
    timed = rows_of(tmp_path / "timed", metrics={"timings": True})
    assert timed == plain
    summary = json.loads((tmp_path / "timed" / "summary.json").read_text())
    assert summary["timings"].keys() == {"data", "engine", "solver", "averaging", "evaluation"}
    assert all(seconds > 0 for seconds in summary["timings"].values())
    assert sum(summary["timings"].values()) == next(clock) - 1, "from the first look to the last"


def test_timings_go_on_after_a_stop(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", metrics={"timings": True})
    for row in run:
        if row["step"] == 6:
            break
    before = dict(run._meter.timings)
    run.save()
    resumed = tasks.run(tmp_path / "run", resume=True, metrics={"timings": True})
    assert resumed._meter.timings["engine"] == pytest.approx(before["engine"])
    for _ in resumed:
        pass
    assert resumed.folder.summary()["timings"]["engine"] >= round(before["engine"], 3)


def test_batches_of_inputs_and_targets_are_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes batches by the size of the inputs, whatever that of the targets is."""
    device = torch.device("cpu")
    assert evaluation._size(torch.empty(5, 3, 32, 32)) < evaluation._size(torch.empty(5))
    monkeypatch.setattr(evaluation, "_BATCH", 7)
    inputs, targets = torch.arange(60).view(20, 3), torch.arange(20)
    for some, others in evaluation._batches(device, inputs, targets):
        assert torch.equal(some[:, 0], 3 * others)
    assert list(evaluation._batches(device, inputs[:0], targets[:0])) == []
