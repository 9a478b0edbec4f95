"""Flower's real programs: its simulation runtime; SuperLink and SuperNodes with TLS and keys."""

import json
import signal
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.flower import keys
from tests.flower.faults import fault
from tests.flower.federation import (
    BASE,
    CLIENTS,
    PERIODIC,
    SOLVERS,
    assert_equal,
    model,
    simulation,
)
from tests.flower.programs import Programs
from tests.limits import seconds

from partavg.folder import Row, RunFolder

pytestmark = pytest.mark.slow

SHORT = {"training.steps": 8, "averaging.parts": 2}


def assert_the_same(folder: RunFolder, changes: dict[str, Any]) -> None:
    trained = model()
    trained.load_state_dict(torch.load(folder.model_path, weights_only=True))
    assert_equal(trained, simulation(changes).consensus())


def rows(folder: RunFolder) -> list[Row]:
    """The metrics so far; the last line may be on its way."""
    if not folder.metrics_path.exists():
        return []
    lines = folder.metrics_path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def test_the_simulation_runtime_is_the_simulation(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "f")
    changes = SOLVERS["scaffold"]
    folder = RunFolder(tmp_path / "run")
    try:
        programs.simulation(CLIENTS, processes=2)
        programs.run(programs.app({**BASE, **changes, "flower.folder": str(folder.path)}))
        programs.wait(lambda: folder.finished, "the run")
    finally:
        programs.close()
    assert_the_same(folder, changes)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """A SuperLink with TLS and three SuperNodes that it knows by their keys."""
    made = Programs(tmp_path_factory.mktemp("flower") / "f")
    try:
        made.superlink()
        made.register(*(f"node{client}" for client in range(CLIENTS)))
        for client in range(CLIENTS - 1):
            supernode(made, client)
        documented_node(made, CLIENTS - 1)
        yield made
    finally:
        made.close()


def supernode(programs: Programs, client: int, *options: str) -> subprocess.Popen[bytes]:
    state = programs.folder / f"state{client}"
    config = f'partition-id={client} state-dir="{state}"'
    return programs.supernode(f"node{client}", config, *options)


def documented_node(programs: Programs, client: int) -> subprocess.Popen[bytes]:
    """A node as users start it: with a warm process of its own, and again when it was killed."""
    words = ["--client", str(client), "--state", f"state{client}", "--key", f"node{client}"]
    command = ["partavg", "flower", "node", f"127.0.0.1:{programs.port}", "--ca", "ca.crt"]
    more = ["--patience", str(seconds())]
    return programs.start(f"node{client}", [*command, *words, *more])


def test_periodic_averaging_over_tls_is_the_simulation(programs: Programs) -> None:
    changes = {**SOLVERS["fedprox"], **PERIODIC, "training.steps": 8}
    folder = RunFolder(programs.folder / "periodic")
    settings = {"flower.folder": str(folder.path), "flower.job": "periodic"}
    programs.run(programs.app({**BASE, **changes, **settings}))
    programs.wait(lambda: folder.finished, "the run")
    assert_the_same(folder, changes)


def wait_for_order(programs: Programs, run: str, turn: int, clients: Iterable[int]) -> None:
    """Wait until clients have all of an order.

    A server that stops in the middle of sending would keep its nodes waiting for up to a minute.
    """

    def received(client: int) -> bool:
        log = (programs.folder / f"node{client}.log").read_text()
        return "Received successfully" in log.partition(f"[RUN {run}, ROUND {turn}]")[2]

    programs.wait(lambda: all(map(received, clients)), f"order {turn}")


@fault("Programs", "the server is killed while clients train, and again between two exchanges")
def test_a_server_killed_and_started_again_is_the_simulation_still(programs: Programs) -> str:
    """Killed while its clients train, and again when it has averaged and they do not know yet."""
    changes = {**SOLVERS["sgd with momentum"], **SHORT}
    folder = RunFolder(programs.folder / "partial")
    settings = {"flower.folder": str(folder.path), "flower.job": "partial", "flower.resume": False}
    app = programs.app({**BASE, **changes, **settings})
    programs.halt(after=4)
    wait_for_order(programs, programs.run(app), 2, range(CLIENTS))
    programs.signal(signal.SIGKILL, "flwr-serverapp")
    assert 1 <= len(rows(folder)) <= 2
    programs.halt(after=6)
    run = programs.run(app, flower__resume=True)
    programs.wait(lambda: len(rows(folder)) >= 3, "the third exchange")
    programs.signal(signal.SIGKILL, "flwr-serverapp")
    assert len(rows(folder)) == 3
    programs.halt(after=None)
    programs.flwr("stop", run, "here")  # or nodes wait a minute for the rest of an order
    programs.run(app, flower__resume=True)
    programs.wait(lambda: folder.finished, "the run")
    assert [row["step"] for row in rows(folder)] == [2, 4, 6, 8, 8]
    assert_the_same(folder, changes)
    return "resumed, it ends as the simulation that never stopped (float64, …)"


@cache
def strangers(programs: Programs) -> list[subprocess.Popen[bytes]]:
    """SuperNodes with a key that is not known, without TLS and without a key."""
    keys.node_key(programs.folder / "node9")
    return [
        supernode(programs, 9),
        supernode(programs, 8, "--insecure", "--max-retries", "2"),
        supernode(programs, 7, "--root-certificates", "ca.crt"),
    ]


@fault("Programs", "a SuperNode is killed")
def test_a_client_killed_and_returned(programs: Programs) -> str:
    folder = RunFolder(programs.folder / "killed")
    settings = {
        **BASE,
        "training.steps": 4,
        "averaging.interval": 2,
        "averaging.parts": 2,
        "flower.folder": str(folder.path),
        "flower.job": "killed",
        "flower.min_clients": 2,
    }
    programs.halt(after=1)
    programs.run(programs.app(settings))
    programs.wait(lambda: rows(folder), "the first exchange")
    programs.signal(signal.SIGKILL, "flower-supernode", "node2")
    programs.halt(after=2)  # or it were done before the node is back
    strangers(programs)  # they try while all wait
    programs.wait(lambda: len(rows(folder)) == 2, "an exchange without it")

    def returned() -> bool:
        """Its key is refused as long as it is thought to be there; the node tries again."""
        return (programs.folder / "node2.log").read_text().count("SuperNode ID") == 2

    programs.wait(returned, "its return")
    programs.halt(after=None)
    programs.wait(lambda: folder.finished, "the run")
    seen = [2 in row["clients"] for row in rows(folder)]
    assert seen[:2] == [True, False]
    assert seen[-1]
    away = folder.summary()["clients"]["2"]["away"]
    assert [entry["step"] for entry in away] == [
        row["step"] for row in rows(folder) if 2 not in row["clients"]
    ]
    return "its client is left out; partavg flower node starts it again, and it takes part"


@fault("Programs", "SuperNodes with an unknown key, without TLS, with TLS and without a key")
def test_strangers_are_refused(programs: Programs) -> str:
    for program in strangers(programs):
        assert program.wait(seconds()) != 0
    assert "2004" in (programs.folder / "node9.log").read_text()
    return "Flower's SuperLink refuses all three, and they end with an error"
