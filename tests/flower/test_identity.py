"""Who a client is: known by the key of its node, and what it says is signed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from tests.flower import keys
from tests.flower.faults import fault
from tests.flower.federation import SOLVERS, federation, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK, altered, damaged, original, turn

from partavg.flower.identity import Signer
from partavg.flower.messages import REPLY
from partavg.flower.run import FederatedRun

CHANGES = {**QUICK, **SOLVERS["sgd with momentum"]}


def with_keys(folder: Path, *, listed: bool, **changes: Any) -> FakeGrid:
    """A federation whose nodes have keys, and a server that may have a list of them."""
    grid = federation(folder, {**CHANGES, "training.steps": 6, **changes})
    lines = []
    for client, context in enumerate(grid.contexts.values()):
        path = folder / f"key{client}"
        path.parent.mkdir(exist_ok=True)
        keys.node_key(path)
        context.node_config["key"] = str(path)
        lines.append(f"{client} {path.with_suffix('.pub').read_text()}  a comment")
    if listed:
        (folder / "clients.keys").write_text("# number and key\n\n" + "\n".join(lines) + "\n")
        config = {"flower.keys": str(folder / "clients.keys")}
        for context in grid.contexts.values():
            context.run_config = {**context.run_config, **config}
    return grid


def leaving(grid: FakeGrid, run: FederatedRun, thief: dict[str, Any]) -> list[Any]:
    """Client 1's node leaves, another takes its number, and the real one comes back."""
    grid.contexts[200] = type(grid.contexts[101])(
        1, 200, {**grid.contexts[101].node_config, **thief}, RecordDict(),
        grid.contexts[101].run_config,
    )  # fmt: skip
    grid.gone = {200}
    rows = []
    for row in run:
        rows.append(row)
        grid.gone = {101} if row["step"] in (2, 3, 4) else {200}
    return rows


KNOWN_BY = ["the list flower.keys", "the key it joined with"]


@pytest.mark.parametrize("known_by", KNOWN_BY)
@fault(
    "Identity", "a client's node leaves, and another takes its number ({known_by})",
    known_by=KNOWN_BY,
)  # fmt: skip
def test_no_other_node_takes_a_clients_place(
    tmp_path: Path, known_by: str, caplog: pytest.LogCaptureFixture
) -> str:
    grid = with_keys(tmp_path, listed=known_by == KNOWN_BY[0])
    keys.node_key(tmp_path / "thief")
    state = str(tmp_path / "thiefs")
    with caplog.at_level("WARNING", "flwr"):
        rows = leaving(grid, server(grid), {"key": str(tmp_path / "thief"), "state-dir": state})
    assert [1 in row["clients"] for row in rows] == [True] * 2 + [False] * 3 + [True] * 2
    assert rows[2]["away"]["1"] == "its node is not connected"
    (refused,) = {r.getMessage() for r in caplog.records if "cannot join" in r.getMessage()}
    return f"“{refused.split('; asked')[0]}”; the real one goes on when it is back"


def replayed(grid: FakeGrid, reply: Message) -> Message:
    """What the client answered a turn before, for this one."""
    before = next(r for c, m, r in reversed(grid.log) if c == 0 and turn(m) == 2)
    return altered(
        Message(RecordDict(dict(before.content)), reply_to=original(reply)),
        turn=reply.content[REPLY]["turn"],
    )


def unsigned(grid: FakeGrid, reply: Message) -> Message:
    kept = {name: record for name, record in reply.content.items() if name != "signature"}
    return Message(RecordDict(kept), reply_to=original(reply))


CHANGED: dict[str, Callable[[FakeGrid, Message], Message]] = {
    "a number of its array": lambda grid, reply: damaged(reply, lambda x: x * 1.01),
    "its loss": lambda grid, reply: altered(reply, loss=0.5),
    "all of it, for its last answer": replayed,
    "its signature is taken away": unsigned,
}


@pytest.mark.parametrize("what", CHANGED)
@fault("Identity", "an answer is changed on its way: {what}", what=CHANGED)
def test_what_is_signed_cannot_be_changed(tmp_path: Path, what: str) -> str:
    grid = with_keys(tmp_path, listed=True)

    def after(client: int, reply: Message) -> Message:
        at_turn_3 = client == 0 and reply.metadata.group_id == "3"
        return CHANGED[what](grid, reply) if at_turn_3 else reply

    grid.after = after
    rows = list(server(grid))
    assert [0 in row["clients"] for row in rows] == [True] * 2 + [False] + [True] * 4
    assert "sign" in rows[2]["away"]["0"]
    return f"left out of that average: “{rows[2]['away']['0']}”"


def refused_at_the_door(grid: FakeGrid, caplog: pytest.LogCaptureFixture, client: int = 2) -> str:
    """Why a client does not come in."""
    with caplog.at_level("WARNING", "flwr"):
        rows = list(server(grid))
    assert rows[-1]["clients"] == [c for c in range(3) if c != client]
    assert rows[-1]["away"] == {str(client): "it never joined"}
    (said,) = {r.getMessage() for r in caplog.records if "cannot join" in r.getMessage()}
    return f"it does not join: “{said.partition('join: ')[2].split('; asked')[0]}”"


@fault("Identity", "a node without a key, and a server with flower.keys")
def test_a_client_without_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> str:
    grid = with_keys(tmp_path, listed=True)
    del grid.contexts[102].node_config["key"]
    return refused_at_the_door(grid, caplog)


@fault("Identity", "a registered node says it is another client")
def test_a_client_with_the_key_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> str:
    grid = with_keys(tmp_path, listed=True)
    grid.contexts[102].node_config["key"] = grid.contexts[101].node_config["key"]
    return refused_at_the_door(grid, caplog)


@fault("Identity", "a node repeats what a client said of itself to another question")
def test_an_old_introduction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> str:
    grid = with_keys(tmp_path, listed=True)
    signer = Signer(Path(str(grid.contexts[102].node_config["key"])))
    grid.contexts[102].node_config["key"] = str(tmp_path / "key1")

    def after(client: int, reply: Message) -> Message:
        if client != 2 or reply.metadata.group_id != "0":
            return reply
        record = ConfigRecord({**reply.content[REPLY], "key": signer.public})
        content = RecordDict({REPLY: record})
        signer.sign_(content, REPLY, {"node": 102, "token": "0" * 16, "nonce": "0" * 32})
        return Message(content, reply_to=original(reply))

    grid.after = after
    return refused_at_the_door(grid, caplog)


def test_a_list_of_keys_is_checked(tmp_path: Path) -> None:
    grid = with_keys(tmp_path, listed=True)
    file = tmp_path / "clients.keys"
    lines = file.read_text().splitlines()
    for text, sentence in {
        "\n".join(lines[:-1]): "has no key of client 2: give one to each of training.workers = 3",
        "x " + lines[2]: "write the number of a client and its public key",
        "0 ssh-ed25519 AAAA": "line 1 of flower.keys",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            server(grid)
    file.unlink()
    with pytest.raises(ValueError, match=r"flower\.keys = .* cannot be read"):
        server(grid)


def test_a_key_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = with_keys(tmp_path, listed=False)
    grid.contexts[102].node_config["key"] = str(tmp_path / "nowhere")
    assert "name the private key of the SuperNode" in refused_at_the_door(grid, caplog)


@fault("Identity", "a key is taken off the list while the run is stopped")
def test_a_key_that_is_revoked(tmp_path: Path) -> str:
    grid = with_keys(tmp_path, listed=True)
    going = iter(server(grid))
    next(going)
    going.close()
    keys.node_key(tmp_path / "new")
    file = tmp_path / "clients.keys"
    old, new = ((tmp_path / f"{name}.pub").read_text().strip() for name in ("key1", "new"))
    file.write_text(file.read_text().replace(old, new))
    rows = list(server(grid, **{"flower.resume": True}))
    assert all(row["clients"] == [0, 2] for row in rows)
    return f"left out from then on: “{rows[0]['away']['1']}”"


def test_a_client_may_come_back_with_another_key_of_its_own(tmp_path: Path) -> None:
    """Where the list gives it two, as when keys are exchanged."""
    grid = with_keys(tmp_path, listed=True)
    keys.node_key(tmp_path / "new")
    with (tmp_path / "clients.keys").open("a") as file:
        file.write(f"1 {(tmp_path / 'new.pub').read_text()}")
    state = str(tmp_path / "new-state")
    grid.contexts[200] = type(grid.contexts[101])(
        1, 200, {"partition-id": 1, "state-dir": state, "key": str(tmp_path / "new")},
        RecordDict(), grid.contexts[101].run_config,
    )  # fmt: skip
    grid.gone, rows = {200}, []
    for row in server(grid):
        rows.append(row)
        grid.gone = {101}
    assert rows[0]["clients"] == [0, 1, 2]
    assert rows[-1]["clients"] == [0, 1, 2]
    assert rows[1]["away"] == {"1": "its node is not connected"}
