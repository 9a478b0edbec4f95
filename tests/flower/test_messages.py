"""What travels, to the byte."""

import logging
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from tests.flower.federation import federation, owned, server
from tests.flower.federation import model as federation_model
from tests.flower.grid import FakeGrid
from tests.limits import seconds
from torch import nn
from torch.nn import functional as F

from partavg.flower import client_app, messages, transport
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings
from partavg.flower.transport import Answer, Sent, Transport


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_arrive_as_they_were(dtype: torch.dtype) -> None:
    numbers = torch.randn(1000).to(dtype)
    content = messages.write(messages.REPLY, messages.Reply(1, 2, 3), messages.pack(numbers))
    assert torch.equal(messages.unpack(content, 1000, dtype), numbers)
    assert messages.read(content, messages.REPLY, messages.Reply).samples == 3


@pytest.mark.parametrize("parts", [1, 4])
def test_an_exchange_costs_its_part_and_little_more(tmp_path: Path, parts: int) -> None:
    """d / P parameters and less than 2 KB and 1 %, each way."""

    def model() -> nn.Module:
        return nn.Linear(500, 200, bias=False)

    def data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, 500), torch.randint(0, 200, (4,))

    config = {
        "training.workers": 2, "training.steps": 8, "averaging.interval": 4,
        "averaging.parts": parts, "flower.folder": str(tmp_path / "run"),
    }  # fmt: skip
    nodes = {i: {"partition-id": i, "state-dir": str(tmp_path / f"{i}")} for i in range(2)}
    grid = FakeGrid(client_app(model, F.cross_entropy, data), config, nodes)
    settings = Settings.read(config)
    agreement = settings.agreement(model, F.cross_entropy, torch.device("cpu"))
    rows = list(FederatedRun(settings, agreement, Transport(grid), None, lambda inputs: inputs))
    part = 4 * 500 * 200 / parts
    for before, after in pairwise(rows[:-1]):
        for way in ("sent", "received"):
            spent = after[way]["0"] - before[way]["0"]
            assert part < spent < 1.01 * part + 2048


def answers_to(sent: Sent) -> Iterator[Answer]:
    """All of them, as they come."""
    while sent.missing:
        if answer := sent.take(0.05):
            yield answer


class Silent(FakeGrid):
    """A grid where a node never answers: looking for its answer blocks until all is over."""

    def __init__(self, other: FakeGrid) -> None:
        super().__init__(other._app, {}, {})
        self.contexts, self.over = other.contexts, Event()

    def pull_messages(self, message_ids: list[str]) -> list[Message]:  # type: ignore[override]
        if message_ids[0].endswith("100"):
            self.over.wait()
            return []
        return list(super().pull_messages(message_ids))


def test_silence_ends_at_the_deadline_and_delays_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, now = Silent(federation(tmp_path, {})), 0.0
    monkeypatch.setattr(transport, "monotonic", lambda: now)
    content = RecordDict(
        {messages.ORDER: messages.write(messages.ORDER, messages.Reply(0, 0, 0))[messages.ORDER]}
    )
    asked = answers_to(
        Transport(grid).send(dict.fromkeys((100, 101, 102), content), "query.partavg", 0, seconds())
    )
    answers = [next(asked), next(asked)]
    assert sorted(answer.node for answer in answers) == [101, 102]
    now = seconds()
    (silent,) = asked
    assert (silent.node, silent.problem) == (100, f"it did not answer within {seconds():g} s")
    grid.over.set()


def test_an_error_without_a_reason_is_still_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = federation(tmp_path, {"training.steps": 2, "averaging.parts": 2, "flower.wait": 0.5})
    grid.after = lambda client, reply: (
        Message(Error(8), reply_to=_asked(reply)) if client == 2 else reply
    )
    with caplog.at_level(logging.WARNING, "flwr"):
        list(server(grid))
    assert "cannot join: error 8: no reason given" in caplog.text


def _asked(reply: Message) -> Message:
    asked = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="query")
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


class Nobody(FakeGrid):
    """A grid where no answer ever comes."""

    looks = 0

    def _deliver(self, message: Message) -> None:
        pass

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks += 1
        return []


@pytest.mark.parametrize("clients", [2, 80])
def test_looks_for_answers_are_bounded(clients: int) -> None:
    """Each of them is work for the SuperLink, whoever's answer it is for."""
    grid = Nobody(ClientApp(), {}, {node: {} for node in range(clients)})
    contents = {node: RecordDict() for node in range(clients)}
    answers = list(answers_to(Transport(grid).send(contents, "train", 1, 0.5)))
    assert all("did not answer within 0.5 s" in answer.problem for answer in answers)
    assert grid.looks <= 600 * 0.5 + 2 * clients


def test_a_process_makes_the_model_once_for_all_its_messages(tmp_path: Path) -> None:
    made = []

    def model() -> nn.Module:
        made.append(1)
        return federation_model()

    grid = federation(tmp_path, {"training.steps": 4})
    grid._app = client_app(model, F.cross_entropy, owned)
    list(server(grid))
    assert len(grid.log) > 12
    assert len(made) == 1
    other = federation(tmp_path, {"training.steps": 4, "training.seed": 4, "flower.job": "other"})
    other._app = grid._app
    list(server(other, **{"flower.folder": str(tmp_path / "other")}))
    assert len(made) == 2, "another start, another model"
