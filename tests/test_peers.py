"""The peers that partavg is timed beside do the same work; one that is not there is left out."""

import csv
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
    words = "--work tiny --rounds 2 --runs 1 --threads 1 --peers loop"
    peers.main([*words.split(), "--out", str(out)])
    assert [(row["peer"], row["run"]) for row in peers.kept(out)][2:] == [("loop", "1")]
