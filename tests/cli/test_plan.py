"""`partavg plan` as a person uses it."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests import tasks

from partavg import models
from partavg.cli import main
from partavg.cli.units import bandwidth, duration
from partavg.cost import Network, Workload, candidates, recommend

NETWORK = ["--bandwidth", "100Mbit", "--latency", "20ms", "--workers", "16"]
ISSUE = ["--model", "resnet50", "--step-ms", "120", *NETWORK]


def plan(*arguments: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


def test_a_small_message_is_not_said_to_be_nothing() -> None:
    done = plan("--parameters", 51018, "--step-ms", 4, "--wire", "int4", *NETWORK)
    assert "51,018 parameters, 0.029 MB (int4)" in done.output


def test_the_table_and_the_recommendation(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    done = plan(*ISSUE, "--json", kept)
    assert done.exit_code == 0, done.output
    assert "25,557,032 parameters, 102.2 MB (full)" in done.output
    for name in ("synchronous", "periodic", "2 parts", "partial", "partial, overlapped"):
        assert re.search(rf"^  {name} +\d", done.output, re.MULTILINE)
    numbers = json.loads(kept.read_text())
    chosen = recommend(candidates(Workload(25_557_032, 0.12), Network(16, 12.5e6, 0.02), 8))
    assert numbers["recommended"] == chosen.cost.name
    assert f"Recommended: {chosen.cost.name} (interval=8, parts=" in done.output
    assert done.output.count("Recommended:") == 1
    epochs = {each["name"]: each["epoch_seconds"] for each in numbers["plans"]}
    steps = round(1_281_167 / (16 * 32))
    assert epochs[chosen.cost.name] == pytest.approx(chosen.cost.seconds * steps)
    assert "steps take as long as the exchanges" in done.output


def test_a_small_wire_and_an_interval(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    options = ["--parameters", "1000000", "--step-ms", "10", *NETWORK, "--wire", "bf16"]
    done = plan(*options, "--interval", "6", "--samples", "1600", "--batch", "1", "--json", kept)
    assert "2.0 MB (bf16)" in done.output
    assert "100 in an epoch" in done.output
    found = json.loads(kept.read_text())["plans"]
    assert {each["parts"] for each in found} == {1, 2, 3, 6}
    assert {round(each["bytes"]) for each in found[1:]} == {round(2 * 15 / 16 * 2e6 / 6)}


def test_what_is_local_is_not_sent() -> None:
    """As if the model had only the other parameters."""
    options = ["--step-ms", "10", *NETWORK]
    some = plan("--parameters", "1000000", "--local", "250000", *options)
    assert some.output == plan("--parameters", "750000", *options).output
    refused = plan("--parameters", "100", "--local", "100", *options)
    assert refused.exit_code == 2
    assert "--local 100 of 100 parameters leaves none to average: use 0 to 99" in refused.output


def test_frozen_statistics_are_sent_until_they_are_frozen(tmp_path: Path) -> None:
    """As a run sends them: all of 12 steps in cycles of 4, frozen after two cycles of three."""
    frozen = {"averaging": {"interval": 4, "buffers": "frozen", "freeze_at": 2 / 3}}
    made = tasks.run(tmp_path / "run", **frozen)
    tasks.finish(made)
    sent = made.folder.summary()["bytes"]
    model = models.mlp((5,), 3, hidden=[6], batch_norm=True, dropout=0.1)
    parameters = sum(p.numel() for p in model.parameters())
    statistics = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    given = ["--statistics", statistics, "--freeze-at", 2 / 3, "--step-ms", 1, *NETWORK]
    kept = tmp_path / "plan.json"
    done = plan("--parameters", parameters, *given, "--interval", 4, "--json", kept)
    assert f"{parameters} parameters and {statistics} statistics for 67 % of the run" in done.output
    work = Workload(parameters + round(2 / 3 * statistics), 1e-3)
    last = 4 * statistics  # they are averaged once more when they are frozen
    assert sent == pytest.approx(3 * work.size + last, abs=4)
    whole = plan("--parameters", parameters, *given[:2], *given[4:])
    assert f"{parameters} parameters and {statistics} statistics, " in whole.output
    refused = plan("--parameters", parameters, *given[2:])
    assert refused.exit_code == 2
    assert "give --statistics, how many there are" in refused.output


def test_synchronous_training_is_named_once() -> None:
    assert plan(*ISSUE, "--interval", "1").output.count("\n  synchronous") == 1


def test_numbers_that_are_there_are_kept_unless_forced(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    kept.write_text("precious")
    refused = plan(*ISSUE, "--json", kept)
    assert refused.exit_code == 2
    assert "plan.json is there already: name another file, or use --force" in refused.output
    assert kept.read_text() == "precious"
    assert plan(*ISSUE, "--json", kept, "--force").exit_code == 0


def test_overlapping_that_saves_nothing_is_said_so() -> None:
    """On a fast network there is next to nothing to hide."""
    small = ["--parameters", "1000", "--step-ms", "1000", "--bandwidth", "10Gbit", "--workers", "4"]
    assert "overlapping would save nothing" in plan(*small).output
    assert re.search(r"would save no more than \d %", plan(*ISSUE, "--step-ms", "30000").output)


RANKS = [
    *("--parameters", 50_000, "--step-ms", 100, "--bandwidth", "1GB", "--latency", "1ms"),
    *("--workers", 130, "--ranks", 4),
]


def test_a_simulation_over_ranks(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    clients = ["--clients", 1001, "--solver", "scaffold", "--local", 1000]
    done = plan(*RANKS, *clients, "--json", kept)
    assert done.exit_code == 0, done.output
    assert "130 workers on 4 ranks (2 of 33 rows, 2 of 32)" in done.output
    assert "Ranks of 32 rows wait for those of 33" in done.output
    assert "128 or 132 workers would be even" in done.output
    assert "Per rank and iteration" in done.output
    found = json.loads(kept.read_text())
    assert found["rows"] == [33, 33, 32, 32]
    assert found["bank_bytes"] == 4 * 251 * (50_000 + 1000 * (1 + 0))
    network = Network(4, 1e9, 1e-3)
    step = 0.1 * 33 / 130 + network.seconds(8 * 33 * 4) / 2
    chosen = recommend(candidates(Workload(49_000, step, 8.0), network, 8)).cost
    assert found["recommended"] == chosen.name
    assert found["efficiency"] == pytest.approx(0.1 / (4 * chosen.seconds))
    even = plan(*RANKS, "--workers", 128).output
    assert "(32 rows each)" in even
    assert "would be even" not in even


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--workers", 3], "4 ranks cannot share 3 workers: use 3 ranks at most"),
        (["--ranks", 1], "ranks 1 is no whole number from 2"),
        (["--clients", 129], "130 of 129 clients cannot be active"),
        (["--wire", "bf16"], "--wire is not for a simulation: leave it out, or --ranks"),
        (["--memory", "host"], "--memory is not for a simulation"),
        (["--measure"], "--measure is not for a simulation"),
    ],
)
def test_mistakes_about_ranks(changes: list[object], sentence: str) -> None:
    done = plan(*RANKS, *changes)
    assert done.exit_code == 2
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_clients_and_ranks_go_together() -> None:
    assert "--clients are those of a simulation over ranks" in plan(*ISSUE, "--clients", 9).output
    alone = ["--parameters", 9, "--step-ms", 1, "--bandwidth", "1GB", "--ranks", 2]
    assert "--ranks share the workers of a simulation: give --workers" in plan(*alone).output


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--bandwidth", "100"], "'100' is no bandwidth: it is a number above 0 with bit"),
        (["--bandwidth", "0Mbit"], "'0Mbit' is no bandwidth"),
        (["--bandwidth", "100mbit"], "'100mbit' is no bandwidth"),
        (["--latency", "20"], "'20' is no time: it is a number of at least 0 with us, ms or s"),
        (["--latency", "-1ms"], "'-1ms' is no time"),
        (["--model", "resnet5"], "--model = 'resnet5' is not known: did you mean 'resnet50'?"),
        (["--model", "zebra"], "count its parameters and give --parameters"),
        (["--parameters", "5"], "the size of the model is not clear: give --model or --parameters"),
        (["--workers", "1"], "1 workers have nothing to exchange: use 2 or more"),
        (["--step-ms", "0"], "a step of 0.0 s is none"),
        (["--interval", "0"], "interval 0 is below 1"),
        (["--batch", "0"], "--batch 0 must be 1 or more"),
        (["--json", "plan.txt"], "plan.txt does not end in .json"),
    ],
)
def test_mistakes(changes: list[str], sentence: str) -> None:
    done = plan(*ISSUE, *changes)
    assert done.exit_code == 2
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("8bit", 1), ("1kbit", 125), ("1Gbit", 125e6), ("12.5MB", 12.5e6), ("2 GB/s", 2e9)],
)
def test_bandwidths(text: str, value: float) -> None:
    assert bandwidth(text) == value


@pytest.mark.parametrize(("text", "value"), [("250us", 250e-6), ("1.5 s", 1.5), ("20ms", 0.02)])
def test_durations(text: str, value: float) -> None:
    assert duration(text) == pytest.approx(value)
