"""The peers that partavg is timed beside do the same work; one that is not there is left out."""

import csv
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("peers")


def test_models_of_peers_are_ours(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from partavg.models import MODELS

    net = import_module("peer_work").model("cifar10")
    ours = MODELS["dropout_cnn"]((3, 32, 32), 10)
    assert [(type(a), a.extra_repr()) for a in net] == [(type(a), a.extra_repr()) for a in ours]
    assert sum(p.numel() for p in net.parameters()) == 1_626_442


@pytest.mark.slow
def test_a_run(
    peers: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours and the loop learn alike; no Python for pfl, no matter."""
    found = {}
    run: Callable[..., dict[str, object]] = peers.run

    def heard(peer: peers.Peer, *more: object) -> object:  # type: ignore[name-defined]
        found[peer.name] = run(peer, *more)
        return found[peer.name]

    monkeypatch.setattr(peers, "run", heard)
    out = tmp_path / "folder" / "peers.csv"
    words = "--work tiny --rounds 40 --runs 1 --threads 1 --peers partavg,loop,pfl"
    peers.main([*words.split(), "--pfl-python", "/no/python", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "pfl does not take part: /no/python cannot be run" in printed
    assert "times ours" in printed
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["peer"] for row in rows] == ["partavg", "loop"]
    assert found["partavg"]["loss"] == pytest.approx(found["loop"]["loss"], abs=0.2)
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert all(float(row["whole"]) > float(row["first"]) > 0 for row in rows)
    words = "--work tiny --rounds 2 --runs 1 --threads 1 --peers loop"
    peers.main([*words.split(), "--out", str(out)])
    assert [(row["peer"], row["run"]) for row in peers.kept(out)][2:] == [("loop", "1")]


def test_all_rounds_are_told_from_some(peers: ModuleType) -> None:
    assert peers.in_all([5.0, 1.0, 3.0], 10) == 5 + 9 * 2
    assert peers.in_all([5.0, 1.0, 3.0], 3) == peers.in_all([5.0, 1.0, 3.0], 0) == 9


def test_who_fails_ends_all_others(peers: ModuleType) -> None:
    """Processes that wait for one that is gone would wait for ever."""
    programs = "import time; time.sleep(1000)", "raise SystemExit(3)"
    started = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    assert peers.waited(started, 1000) == ""
    assert started[0].returncode < 0
    assert started[1].returncode == 3


def test_who_takes_too_long_is_ended(peers: ModuleType) -> None:
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])]
    assert peers.waited(started, 0) == "it was not done after 0 s"
    assert started[0].returncode < 0


def test_processes_know_each_other(peers: ModuleType) -> None:
    told = peers.environments(3)
    assert [each["PFL_WORKER_RANK"] for each in told] == ["0", "1", "2"]
    assert len(set(told[0]["PFL_WORKER_ADDRESSES"].split(","))) == 3
    assert peers.environments(1) == [{}]
