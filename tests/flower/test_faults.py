"""What breaks is left out, named and made whole again; it never touches the model."""

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tests.flower.federation
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from tests.flower.faults import fault
from tests.flower.federation import SOLVERS, assert_equal, federation, server
from tests.flower.grid import FakeGrid

from partavg.flower.messages import ORDER, PART, REPLY
from partavg.flower.rounds import TooFewClients

QUICK = {"flower.wait": 0.0, "flower.patience": 0.0}


SHORT = {"training.steps": 4, "flower.catch_up": "whole"}


def turn(message: Message) -> int:
    """The turn that a message is about; 0 for an introduction."""
    return int(message.content[ORDER].get("turn", 0))


def altered(reply: Message, **changes: Any) -> Message:
    """A reply with other numbers beside its array."""
    record = {**reply.content[REPLY], **changes}
    return Message(
        RecordDict({**reply.content, REPLY: ConfigRecord(record)}), reply_to=original(reply)
    )


def original(reply: Message) -> Message:
    """Something to reply to, as the reply did."""
    asked = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="train")
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


def with_array(reply: Message, array: Array) -> Message:
    """A reply with another array."""
    content = RecordDict({**reply.content, PART: ArrayRecord({PART: array})})
    return Message(content, reply_to=original(reply))


def damaged(reply: Message, change: Callable[[torch.Tensor], torch.Tensor]) -> Message:
    """A reply whose numbers were changed."""
    array = reply.content[PART][PART]
    numbers = change(torch.frombuffer(bytearray(array.data), dtype=torch.float64))
    dtype = str(numbers.dtype).removeprefix("torch.")
    data = numbers.numpy().tobytes()
    return with_array(reply, Array(dtype, tuple(numbers.shape), array.stype, data))


def nan(numbers: torch.Tensor) -> torch.Tensor:
    numbers[3] = torch.nan
    return numbers


def two_arrays(reply: Message) -> Message:
    array = reply.content[PART][PART]
    content = RecordDict({**reply.content, PART: ArrayRecord({PART: array, "more": array})})
    return Message(content, reply_to=original(reply))


def cut_off(reply: Message) -> Message:
    array = reply.content[PART][PART]
    return with_array(reply, Array(array.dtype, array.shape, array.stype, array.data[:-1]))


def with_record(reply: Message, name: str, record: Any) -> Message:
    return Message(RecordDict({**reply.content, name: record}), reply_to=original(reply))


FAULTS: dict[str, tuple[Callable[[Message], Message], str]] = {
    "an error": (
        lambda reply: Message(Error(2, "disk full"), reply_to=original(reply)),
        "error 2: disk full",
    ),
    "not finite": (lambda reply: damaged(reply, nan), "not finite"),
    "another shape": (lambda reply: damaged(reply, lambda x: x[None]), "has the shape"),
    "too long": (lambda reply: damaged(reply, lambda x: torch.cat([x, x])), "has the shape"),
    "another dtype": (lambda reply: damaged(reply, lambda x: x.float()), "float32, not"),
    "cut off": (cut_off, "bytes, not"),
    "pickled": (
        lambda reply: with_array(reply, Array("float64", (1,), "pickle", b"cos\nsystem")),
        "its numbers are pickle",
    ),
    "two arrays": (two_arrays, "exactly one array"),
    "an implausible count": (
        lambda reply: altered(reply, samples=10**9),
        "1000000000 samples, which is not",
    ),
    "a count that is no number": (lambda reply: altered(reply, samples="many"), "no int"),
    "an old turn": (lambda reply: altered(reply, turn=1), "turn 1, not"),
    "another's name": (lambda reply: altered(reply, client=1), "for client 1"),
    "a record more": (
        lambda reply: with_record(reply, "more", ConfigRecord({"x": 1})),
        "a message with a reply holds 1 more than it may, as the record 'more'",
    ),
    "a key more": (lambda reply: altered(reply, more=1), "as the key 'more'"),
    "5 MB of text for a number": (
        lambda reply: altered(reply, samples="x" * 5_000_000),
        "and no more than",
    ),
    "50 KB of text for a number": (
        lambda reply: altered(reply, samples="x" * 50_000),
        "samples = 'xxxxxxxxxxxx...xxxxxxxxxxxxx' of its reply is no int",
    ),
    "a message larger than asked for": (
        lambda reply: damaged(reply, lambda x: x.repeat(10_000)),
        "and no more than",
    ),
    "a loss that is infinite": (lambda reply: altered(reply, loss=float("inf")), "is not finite"),
    "control characters in an error": (
        lambda reply: Message(Error(2, "\x1b[31mgone\x07\u202e\n" * 3), reply_to=original(reply)),
        "error 2: [31mgone [31mgone [31mgone",
    ),
    "nothing in it": (
        lambda reply: Message(RecordDict(), reply_to=original(reply)),
        "holds no reply",
    ),
}


def trained(folder: Path, prepare: Callable[[FakeGrid], None], **changes: Any) -> Any:
    grid = federation(folder, {**QUICK, **SOLVERS["sgd with momentum"], **changes})
    prepare(grid)
    run = server(grid)
    return run, list(run), grid


def late_at(*turns: int, client: int = 0) -> Callable[[FakeGrid], None]:
    def prepare(grid: FakeGrid) -> None:
        grid.fault = lambda who, message: (
            "late" if who == client and turn(message) in turns else None
        )

    return prepare


def unheard_at(number: int) -> Callable[[FakeGrid], None]:
    """Client 0 carries out a turn, and the server hears nothing of it."""

    def prepare(grid: FakeGrid) -> None:
        deliver = grid._deliver

        def late(message: Message) -> None:
            deliver(message)
            if turn(message) == number and grid.client(message.metadata.dst_node_id) == 0:
                grid.expire(message)

        grid._deliver = late  # type: ignore[method-assign]

    return prepare


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run in which client 0 does not answer at turn 3."""
    return trained(tmp_path_factory.mktemp("without"), late_at(3), **SHORT)


@pytest.mark.parametrize("answer", FAULTS)
@fault("What a client answers", "{answer}", answer=FAULTS)
def test_a_bad_answer_is_no_answer(
    tmp_path: Path, answer: str, without: Any, caplog: pytest.LogCaptureFixture
) -> str:
    damage, reason = FAULTS[answer]

    def prepare(grid: FakeGrid) -> None:
        def after(client: int, reply: Message) -> Message:
            return damage(reply) if client == 0 and reply.metadata.group_id == "3" else reply

        grid.after = after

    with caplog.at_level(logging.INFO, "flwr"):
        run, rows, _ = trained(tmp_path, prepare, **SHORT)
    assert reason in rows[2]["away"]["0"]
    assert f"client 0 (node 100) is left out at step 3: {rows[2]['away']['0']}" in caplog.text
    assert re.search(r"partavg: step 3/\d+, 2 of 3 clients, [\d.]+ s", caplog.text)
    assert [row["clients"] for row in rows] == [[0, 1, 2]] * 2 + [[1, 2]] + [[0, 1, 2]] * 2
    assert run.folder.summary()["clients"]["0"]["away"][0]["step"] == 3
    other, _, _ = without
    at_turn_3 = [list(each.folder.rows())[2]["discrepancy_due"] for each in (run, other)]
    assert at_turn_3[0] == at_turn_3[1], "the others' average, as if it had said nothing"
    assert run.server.mirror.params.isfinite().all()
    written = [path for path in run.folder.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) < 200_000, "whatever the client says"
    return f"left out of that average, as if it had said nothing: “{rows[2]['away']['0']}”"


def test_weights_are_renormalised(tmp_path: Path) -> None:
    """The average of those who answered, by their samples: 20 and 30 of 60."""
    _, _, grid = trained(tmp_path, late_at(3), **{"averaging.weights": "samples"})
    messages = {
        client: torch.frombuffer(bytearray(reply.content[PART][PART].data), dtype=torch.float64)
        for client, message, reply in grid.log
        if turn(message) == 3
    }
    assert sorted(messages) == [1, 2]
    told = next(
        message
        for client, message, _ in grid.log
        if turn(message) == 4 and message.content[ORDER]["bring"] == "sums"
    )
    sums = torch.frombuffer(bytearray(told.content[PART][PART].data), dtype=torch.float64)
    torch.testing.assert_close(sums, 0.4 * messages[1] + 0.6 * messages[2])


@pytest.mark.parametrize(
    ("catch_up", "brought"),
    [
        ("parts", ["sums", "part", "part", "part", "part", "sums", "sums"]),
        ("whole", ["sums", "whole", "sums", "sums", "sums", "sums", "sums"]),
    ],
)
def test_a_client_that_returns_becomes_whole(
    tmp_path: Path, catch_up: str, brought: list[str]
) -> None:
    """Away for more than a cycle: four parts came round, or one whole model came."""
    run, rows, grid = trained(
        tmp_path,
        late_at(3, 4, 5, 6, 7),
        **{"flower.catch_up": catch_up, "training.steps": 16, "flower.rest": 0.0},
    )
    told = [
        message.content[ORDER]["bring"] for client, message, _ in grid.log
        if client == 0 and turn(message) > 1
    ]  # fmt: skip
    assert told[:7] == brought
    assert [0 in row["clients"] for row in rows] == [True] * 2 + [False] * 5 + [True] * 10
    away = [entry["step"] for entry in run.folder.summary()["clients"]["0"]["away"]]
    assert away == [3, 4, 5, 6, 7]


def test_only_what_is_due_travels(tmp_path: Path) -> None:
    run, _, grid = trained(tmp_path, lambda grid: None)
    agreement = run._agreement
    for _, message, reply in grid.log:
        if turn(message) == 0:
            assert sum(isinstance(r, ArrayRecord) for r in reply.content.values()) == 0
            assert set(reply.content[REPLY]) == {"client", "samples", "digest", "key", "tests"}
            continue
        order = message.content[ORDER]
        assert set(reply.content[REPLY]) == {"turn", "client", "samples", "lost", "loss"}
        assert reply.content[REPLY]["loss"] != reply.content[REPLY]["loss"], "not shared"
        sent = reply.content[PART][PART].shape[0]
        came = message.content[PART][PART].shape[0]
        if turn(message) == 1:
            assert came == agreement.model_length, "a client joins"
        else:
            assert came == agreement.message_length("part", order["part"])
        last = order["send"] == "model"
        assert sent == (
            agreement.model_length if last else agreement.message_length("part", order["due"])
        )
    assert [turn(message) for _, message, _ in grid.log].count(13) == 3


def test_a_loss_is_shared_only_if_the_client_says_so(tmp_path: Path) -> None:
    grid = federation(tmp_path, QUICK, share_loss=True)
    rows = list(server(grid))
    assert all(row["loss"] > 0 for row in rows[:-1])


@fault("State", "a client loses its state folder")
def test_a_client_that_lost_its_state_gets_a_whole_model(tmp_path: Path) -> str:
    def prepare(grid: FakeGrid) -> None:
        def fault(client: int, message: Message) -> None:
            if client == 0 and turn(message) == 5:
                shutil.rmtree(tmp_path / "node0")

        grid.fault = fault

    _, rows, grid = trained(tmp_path, prepare)
    assert "does not have its state" in rows[4]["away"]["0"]
    assert [0 in row["clients"] for row in rows] == [True] * 4 + [False] + [True] * 8
    told = [m.content[ORDER]["bring"] for c, m, _ in grid.log if c == 0 and turn(m) == 6]
    assert told == ["whole"]
    return f"left out once (“{rows[4]['away']['0']}”), then it goes on with the whole model"


def test_too_few_clients_stop_the_run_and_it_goes_on_later(tmp_path: Path) -> None:
    changes = {**QUICK, **SOLVERS["sgd with momentum"]}
    whole = server(federation(tmp_path / "whole", changes))
    expected = list(whole)
    grid = federation(tmp_path, changes)
    grid.fault = lambda client, message: "late" if client and turn(message) == 6 else None
    with pytest.raises(TooFewClients, match=r"1 of 3 clients answered at step 6 .* and 2 must"):
        list(server(grid))
    grid.fault = lambda client, message: None
    with pytest.raises(ValueError, match=r"unfinished run: use flower.resume = true"):
        server(grid)
    run = server(grid, **{"flower.resume": True})
    assert [row["step"] for row in run] == [row["step"] for row in expected[5:]]
    assert_equal(run.model(), whole.model(), tolerance=0)
    with pytest.raises(ValueError, match=r"holds a finished run: use another flower.folder"):
        server(grid, **{"flower.resume": True})


def test_a_late_answer_is_left_out_and_the_client_goes_on(tmp_path: Path) -> None:
    """It trained and answered, but the server did not hear: the next turn brings the part."""

    _, rows, _ = trained(tmp_path, unheard_at(4))
    assert [0 in row["clients"] for row in rows] == [True] * 3 + [False] + [True] * 9


def test_a_node_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    grid = federation(tmp_path, QUICK)
    run = server(grid)
    rows = []
    for row in run:
        rows.append(row)
        grid.gone = {100} if row["step"] < 5 else set()
    assert rows[1]["away"] == {"0": "its node is not connected"}
    assert [0 in row["clients"] for row in rows] == [True] + [False] * 4 + [True] * 8


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"partition-id": 1}, "client 1 is there already"),
        ({"partition-id": 7}, "give its node a partition-id from 0 to 2"),
        ({}, "is no number of a client"),
    ],
)
def test_nodes_that_cannot_join(
    tmp_path: Path,
    config: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tests.flower.federation, "split", lambda: 9 * [torch.arange(9)])
    grid = federation(tmp_path, {**QUICK, "training.steps": 2})
    grid.contexts[102].node_config = {**config, "state-dir": str(tmp_path / "node9")}
    grid.client = lambda node: node - 100  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "flwr"):
        rows = list(server(grid))
    assert rows[-1]["clients"] == [0, 1]
    assert rows[-1]["away"] == {"2": "it never joined"}
    assert "node 102 cannot join" in caplog.text
    assert reason in caplog.text


def test_a_client_with_another_model_cannot_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = federation(tmp_path, {**QUICK, "training.steps": 2})
    other = {**grid.contexts[102].run_config, "solver.momentum": 0.5}
    grid.contexts[102].run_config = other
    with caplog.at_level(logging.WARNING, "flwr"):
        rows = list(server(grid))
    assert rows[-1]["clients"] == [0, 1]
    assert "client 2 has another model, partition or solver" in caplog.text


def test_files_of_no_run_are_not_overwritten(tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "metrics.jsonl"
    theirs.parent.mkdir()
    theirs.write_text("precious")
    with pytest.raises(ValueError, match=r"would be overwritten, but .* use another flower.folder"):
        server(federation(tmp_path, QUICK))
    assert theirs.read_text() == "precious"
