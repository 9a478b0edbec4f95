"""Whatever a client answers, it is left out and named: no message of one client ends a run.

The clients sign what they send with keys of their own, so that malformed messages are signed, too.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tests.flower.federation
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from tests.flower import keys
from tests.flower.faults import fault
from tests.flower.federation import app, federation, held_back, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK, original

from partavg.flower.identity import Signer
from partavg.flower.messages import ORDER, PART, REPLY, SCORES, SIGNATURE

Change = Callable[[RecordDict], RecordDict | None]
"""What becomes of the content of an answer; None for an answer without any."""


def with_records(**records: Any) -> Change:
    return lambda content: RecordDict({**content, **records})


def with_values(**values: Any) -> Change:
    return lambda content: RecordDict(
        {**content, REPLY: ConfigRecord({**content[REPLY], **values})}
    )


def without(content: RecordDict) -> RecordDict:
    values = {k: v for k, v in content[REPLY].items() if k != "samples"}
    return RecordDict({**content, REPLY: ConfigRecord(values)})


def array(**values: Any) -> ArrayRecord:
    known = {"dtype": "float64", "shape": (1,), "stype": "little-endian", "data": b"\0" * 8}
    return ArrayRecord({PART: Array(**{**known, **values})})


MALFORMED: dict[str, tuple[Change, str]] = {
    "another kind of record": (with_records(reply=array()), "holds no reply"),
    "a number is missing": (without, "samples = None of its reply is no int"),
    "bytes for a number": (with_values(client=b"\x00"), r"client = b'\x00' of its reply is no int"),
    "a list for a number": (with_values(samples=[1, 2]), "samples = list of its reply is no int"),
    "a fraction of a sample": (with_values(samples=1.5), "samples = 1.5 of its reply is no int"),
    "truth for a number": (with_values(client=True), "client = True of its reply is no int"),
    "the largest number there is": (with_values(samples=2**63 - 1), "which is not between 1 and"),
    "no array in its record": (with_records(part=ArrayRecord({})), "exactly one array"),
    "an array of another name": (
        with_records(part=ArrayRecord({"other": array()[PART]})), "exactly one array",
    ),
    "settings for an array": (
        with_records(part=ConfigRecord({"part": 1})),
        "the record 'part' of its message is no ArrayRecord: ConfigRecord",
    ),
    "a shape that is negative": (with_records(part=array(shape=(-1,))), "has the shape (-1,), not"),
    "a shape of 5,000 digits": (with_records(part=array(shape=(10**5000,))), "cannot be read"),
    "a dtype that nobody knows": (with_records(part=array(dtype="object")), "object, not"),
    "bytes for scores": (
        with_records(scores=ConfigRecord({"samples": 3, "average.loss.sum": b"\x00"})),
        "scores, and none were asked for",
    ),
    "an array for scores": (
        with_records(scores=array()), "the record 'scores' of its message is no ConfigRecord",
    ),
    "metrics for a signature": (
        with_records(signature=MetricRecord({"signature": 1})),
        "the record 'signature' of its message is no ConfigRecord: MetricRecord",
    ),
    "no content": (lambda content: None, "its answer is empty"),
}  # fmt: skip
OF_ARRAYS = {what for what in MALFORMED if "array" in what or "shape" in what or "dtype" in what}


class Malicious:
    """Clients that answer one malformed message after another where a test wants it."""

    def __init__(
        self, grid: FakeGrid, where: Callable[[dict[str, Any]], bool], what: Sequence[str]
    ) -> None:
        self.grid, self.where, self.what, self.asked = grid, where, what, dict[str, Any]()
        self.said: list[tuple[int, str]] = []
        """The turn, and what was sent."""
        grid.fault, grid.after = self._note, self._answer
        self.clients = {0}

    def _note(self, client: int, message: Message) -> None:
        self.asked = dict(message.content[ORDER])

    def _answer(self, client: int, reply: Message) -> Message:
        if client not in self.clients or reply.has_error() or not self.where(self.asked):
            return reply
        what = self.what[len(self.said) % len(self.what)]
        self.said.append((self.asked.get("turn", client), what))
        content = MALFORMED[what][0](RecordDict(dict(reply.content)))
        if content is None:
            empty = Message(RecordDict(), reply_to=original(reply))
            empty.__dict__["_content"] = None
            return empty
        if content[SIGNATURE] == reply.content[SIGNATURE]:
            about = {k: v for k, v in self.asked.items() if k in ("token", "nonce")}
            self.sign_(content, client, {"node": 100 + client, **about})
        return Message(content, reply_to=original(reply))

    def sign_(self, content: RecordDict, client: int, about: dict[str, Any]) -> None:
        key = self.grid.contexts[100 + client].node_config["key"]
        try:
            Signer(Path(str(key))).sign_(content, REPLY, about)
        except (KeyError, TypeError):
            content[SIGNATURE] = ConfigRecord({SIGNATURE: b"nothing of this can be signed"})


def malicious(
    folder: Path,
    where: Callable[[dict[str, Any]], bool],
    what: Sequence[str] = tuple(MALFORMED),
    **changes: Any,
) -> tuple[Malicious, FakeGrid]:
    """A federation whose nodes have keys, and whose clients have test samples."""
    grid = federation(folder, {**QUICK, "flower.rest": 0.0, **changes})
    grid._app = app(test=held_back)
    for client, context in enumerate(grid.contexts.values()):
        path = folder / f"key{client}"
        path.parent.mkdir(exist_ok=True)
        keys.node_key(path)
        context.node_config["key"] = str(path)
    return Malicious(grid, where, what), grid


def trains(order: dict[str, Any]) -> bool:
    return bool(order.get("send") == "part")


def hands_over(order: dict[str, Any]) -> bool:
    return "send" in order and order["start"] == order["until"] and order["send"] != "scores"


def scores(order: dict[str, Any]) -> bool:
    return bool(order.get("send") == "scores")


def joins(order: dict[str, Any]) -> bool:
    return "nonce" in order


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All of them, one exchange after another, and why each was left out."""
    steps = len(MALFORMED) + 1
    one, grid = malicious(tmp_path_factory.mktemp("answers"), trains, **{"training.steps": steps})
    rows = list(server(grid))
    assert rows[-1]["stage"] == "end"
    assert rows[-1]["clients"] == [0, 1, 2], "it comes back when it says something that holds"
    return {what: rows[turn - 1]["away"]["0"] for turn, what in one.said}


@pytest.mark.parametrize("what", MALFORMED)
@fault("What a client answers", "{what}", what=MALFORMED)
def test_a_malformed_answer_is_left_out(answers: dict[str, str], what: str) -> str:
    assert MALFORMED[what][1] in answers[what]
    return f"left out of that average, as if it had said nothing: “{answers[what]}”"


def why_not(what: str, said: str) -> bool:
    """Whether a reason fits, where an array may not have been asked for."""
    return MALFORMED[what][1] in said or (what in OF_ARRAYS and "none was asked for" in said)


def test_malformed_scores_are_left_out(tmp_path: Path) -> None:
    changes = {"metrics.clients_every": 1, "training.steps": len(MALFORMED)}
    one, grid = malicious(tmp_path, scores, **changes)
    rows = [row for row in server(grid, has_samples=False) if row["stage"] == "evaluation"]
    assert [what for _, what in one.said] == list(MALFORMED)
    for row, what in zip(rows, MALFORMED, strict=True):
        why = row["away"]["0"]
        assert why_not(what, why) or "average.loss.sum is no finite number" in why
        assert row["clients"] == [1, 2]
        assert "accuracy" in row


WORST = ["an array of another name", "no array in its record", "an array for scores",
         "bytes for scores", "no content"]  # fmt: skip
"""Those that are hardest to read."""


@pytest.mark.parametrize("how", ["average", "permute", "none", "listen"])
def test_malformed_hand_overs_are_left_out(tmp_path: Path, how: str) -> None:
    """Clients that leave answer it, and one its last model."""
    changes = {
        "participation.fraction": 0.67, "participation.every": 2, "flower.min_clients": 1,
        "participation.redistribution": how, "averaging.parts": 2, "averaging.interval": 2,
        "training.steps": 14, "averaging.buffers": "every",
        "solver.name": "scaffold" if how == "listen" else "sgd",
    }  # fmt: skip
    one, grid = malicious(tmp_path, hands_over, WORST, **changes)
    rows = list(server(grid))
    assert rows[-1]["step"] == 14
    answered = [(turn, what) for turn, what in one.said if turn <= len(rows)]
    assert len(answered) >= 2
    assert len(one.said) - len(answered) <= 1, "hearing that it is over makes no row"
    for turn, what in answered:
        row = rows[turn - 1]
        assert row["stage"] in ("redistribution", "dismissal", "end")
        assert why_not(what, row["away"]["0"])


@fault("What a client answers", "any of these, as it introduces itself")
def test_a_malformed_introduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> str:
    """A node for each of them, and two clients that go on without them."""
    many = len(MALFORMED) + 2
    monkeypatch.setattr(tests.flower.federation, "split", lambda: many * [torch.arange(9)])
    changes = {"training.workers": many, "training.steps": 2, "averaging.buffers": "every"}
    one, grid = malicious(tmp_path, joins, **changes)
    one.clients = set(range(2, many))
    with caplog.at_level("WARNING", "flwr"):
        rows = list(server(grid))
    assert rows[-1]["clients"] == [0, 1]
    refused = {
        int(found[1]): found[2]
        for record in caplog.records
        if (found := re.match(r"node (\d+) cannot join: (.*)", record.getMessage()))
    }
    assert sorted(refused) == [100 + client for client in range(2, many)]
    for client, what in one.said:
        assert why_not(what, refused[100 + client])
    return "the node does not join, and a warning says why; the others go on"


def test_a_metric_that_fails_on_what_a_client_says(tmp_path: Path) -> None:
    """One's own, which makes a number of sums that no honest client has."""
    (tmp_path / "own.py").write_text(
        "import math\n"
        "def hard(outputs, targets):\n"
        "    return float(len(targets)), len(targets)\n"
        "def finish(total, count):\n"
        "    if total < 0: raise ZeroDivisionError('never seen')\n"
        "    return math.sqrt(total)\n"
        "from partavg import Metric\n"
        "metric = Metric('hard', sums=hard, finish=finish)\n"
    )
    changes = {"training.steps": 1, "metrics.extra": json.dumps([f"{tmp_path / 'own.py'}:metric"])}
    one, grid = malicious(tmp_path, scores, **changes)
    one.clients = set()

    def lies(client: int, reply: Message) -> Message:
        if client == 0 and SCORES in reply.content:
            record = ConfigRecord({**reply.content[SCORES], "average.score.hard.sum": -4.0})
            content = RecordDict({**reply.content, SCORES: record})
            one.sign_(content, 0, {"node": 100, "token": one.asked["token"]})
            return Message(content, reply_to=original(reply))
        return reply

    grid.after = lies
    *_, row = server(grid, has_samples=False)
    assert row["clients"] == [1, 2]
    assert row["away"]["0"] == "no number can be made of its sums (ZeroDivisionError: never seen)"
    assert row["hard"] == pytest.approx(100**0.5)
