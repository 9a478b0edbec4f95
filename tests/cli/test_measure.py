"""`partavg plan --measure`: two real processes measure the link between them."""

import json
from pathlib import Path

import pytest
from tests.cli.test_plan import ISSUE, plan
from tests.cli.test_torchrun import by_hand, finished

from partavg.cost import Network
from partavg.cost.measured import SIZES, fitted

WORK = ["--parameters", "1000000", "--step-ms", "10"]


def test_ranks_measure_the_link_between_them(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    said = finished(["plan", "--measure", *WORK, "--json", kept], tmp_path)
    assert "2 workers" in said
    assert "gloo, measured" in said
    assert said.count("Recommended:") == 1
    for each in json.loads(kept.read_text())["plans"]:
        assert 0 < each["exchange_seconds"] < 100


def test_a_mistake_of_all_ranks_is_said_once(tmp_path: Path) -> None:
    with by_hand(["plan", "--measure", *WORK, "--workers", "2"], tmp_path) as ranks:
        said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert said == [
        "partavg: --measure finds --workers out by itself: leave one of them out\n", ""
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--measure", *WORK], "--measure needs other ranks: start them with torchrun"),
        ([*WORK, "--workers", "2"], "give --bandwidth and --workers, or start the command with"),
        ([*ISSUE, "--solver", "adamw"], "--solver adamw takes local steps"),
        ([*ISSUE, "--solver", "dilocco"], "--solver = 'dilocco' is not known: did you mean"),
    ],
)
def test_what_is_missing(words: list[str], sentence: str) -> None:
    done = plan(*words)
    assert done.exit_code == 2
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(("bandwidth", "latency"), [(12.5e6, 0.02), (1.25e9, 1e-4), (1e10, 0.0)])
def test_a_network_is_found_by_its_times(backend: str, bandwidth: float, latency: float) -> None:
    known = Network(8, bandwidth, latency, backend)
    found = fitted({size: known.seconds(size) for size in SIZES}, 8, backend)
    assert found.bandwidth == pytest.approx(bandwidth)
    assert found.latency == pytest.approx(latency, abs=1e-9)


def memory(tmp_path: Path, *words: str) -> dict[str, float]:
    kept = tmp_path / "plan.json"
    assert plan(*ISSUE, *words, "--json", kept, "--force").exit_code == 0
    return {each["name"]: each["memory_bytes"] for each in json.loads(kept.read_text())["plans"]}


def test_memory_beside_the_model(tmp_path: Path) -> None:
    numbers = 25_557_032
    assert memory(tmp_path)["partial"] == 0
    assert memory(tmp_path)["partial, overlapped"] == pytest.approx(8 / 8 * numbers)
    outer = memory(tmp_path, "--solver", "diloco")
    assert outer["partial"] == 8 * numbers
    small = memory(tmp_path, "--solver", "diloco", "--dtype", "bf16", "--memory", "params")
    assert small["partial"] == 4 * numbers
    assert memory(tmp_path, "--wire", "int8")["partial"] == pytest.approx(
        numbers * 4 * (2 + 1 / 16)
    )


def test_models_of_16_bits_and_solvers_that_send_more() -> None:
    assert "51.1 MB (full)" in plan(*ISSUE, "--dtype", "bf16", "--solver", "diloco").output
    assert "204.5 MB (full)" in plan(*ISSUE, "--dtype", "bf16", "--solver", "scaffold").output
