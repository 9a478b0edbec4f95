"""Rounded messages: what is lost is sent later, everybody decodes the same, and it is less."""

import os
import threading
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import Case, attached, distance
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.backends.distributed.compressed import Compressed
from partavg.core.wire_formats import BLOCK, WIRE_FORMATS

SIZE, TAIL, ROUNDS = 1000, 5, 5
ROUNDED = [name for name, wire in WIRE_FORMATS.items() if wire.codec]


def collective_of(wire: str) -> Compressed:
    codec = WIRE_FORMATS[wire].codec
    assert codec
    return Compressed(dist.new_group(), codec, 1 / 3)


def messages_of(rank: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(ROUNDS)]


def exchanges(rank: int, wire: str, size: int) -> list[tuple[Tensor, Tensor, int]]:
    """Sums of messages whose last numbers are exact, what is still owed, bytes of each."""
    collective = collective_of(wire)
    seen = []
    for message in messages_of(rank, size + TAIL):
        before = collective.bytes
        signed = torch.cat([message, message.new_empty(collective.room)])
        total = collective(signed, 0, exact=TAIL)().clone()
        state, owed = collective.state(), torch.zeros(size, dtype=torch.float64)
        if state["late"]:
            owed += state["late"][0]
            width = state["late_sum"][0].shape[1]
            mine = owed[rank * width : (rank + 1) * width]
            mine += state["late_sum"][0][0, : len(mine)]
        seen.append((total, owed, collective.bytes - before))
    collective.close()
    return seen


def twin(wire: str, size: int) -> list[Tensor]:
    """The sums, by the protocol's equations: two roundings, each with its debt."""
    codec = WIRE_FORMATS[wire].codec
    assert codec
    width = -(-size // (3 * BLOCK)) * BLOCK
    known, late = torch.zeros(size, dtype=torch.float64), torch.zeros(4, 3 * width).double()
    totals = []
    all_messages = [messages_of(rank, size + TAIL) for rank in range(3)]
    for number, messages in enumerate(zip(*all_messages, strict=True)):
        if number == 0:
            totals.append(torch.stack(messages).sum(0))
            known = totals[0][:size].clone()
            continue
        sent = torch.zeros(1, 3 * width, dtype=torch.float64)
        for rank, message in enumerate(messages):
            late[rank, :size] += message[:size] - known / 3
            told = codec.unpack(codec.pack(late[rank].view(3, width))).double().flatten()
            late[rank] -= told
            late[rank, size:] = 0
            sent += told
        late[3] += sent[0]
        told = codec.unpack(codec.pack(late[3].view(3, width))).double().flatten()
        late[3] -= told
        known = known + told[:size]
        totals.append(torch.cat([known, torch.stack(messages)[:, size:].sum(0)]))
    return totals


@pytest.mark.parametrize("size", [SIZE, 3 * BLOCK])
@pytest.mark.parametrize("wire", ROUNDED)
def test_what_rounding_lost_is_sent_later(ranks: Ranks, wire: str, size: int) -> None:
    rounds = list(zip(*ranks(exchanges, wire, size), strict=True))
    expected = twin(wire, size)
    before = torch.zeros(size, dtype=torch.float64)
    blocks = 3 * -(-size // (3 * BLOCK))
    for number, ranked in enumerate(rounds):
        messages = [messages_of(rank, size + TAIL)[number] for rank in range(3)]
        totals, owed, sent = zip(*ranked, strict=True)
        assert all(torch.equal(totals[0], total) for total in totals), "all decode the same"
        exact, late = sum(messages), sum(owed)
        torch.testing.assert_close(totals[0], expected[number], rtol=0, atol=1e-9)
        torch.testing.assert_close(
            totals[0][:size] + late, exact[:size] + before, rtol=0, atol=1e-9
        )
        torch.testing.assert_close(totals[0][size:], exact[size:], rtol=0, atol=1e-12)
        rounded = blocks * BLOCK * WIRE_FORMATS[wire].bytes_per_number
        tail = 3 * 2 * 8  # five numbers in shares of two
        assert sent[0] == (rounded + tail if number else 8 * (size + TAIL))
        before = late


@pytest.mark.parametrize(("wire", "bound"), [("bf16", 0.01), ("int8", 0.02), ("int4", 0.2)])
def test_training_with_rounded_messages_stays_close(ranks: Ranks, wire: str, bound: float) -> None:
    full = ranks(attached, Case({"interval": 4}), 24)
    rounded = ranks(attached, Case({"interval": 4, "wire": wire, "delay": 0}), 24)
    apart = distance(full[0][-1], full[0][0])
    assert 0 < distance(full[0][-1], rounded[0][-1]) < bound * apart
    assert all(distance(rounded[0][-1], other[-1]) == 0 for other in rounded)


def least_squares(rank: int, wire: str, parts: int) -> float:
    """How far from the solution ranks end that have data of their own, and the same solution."""
    torch.manual_seed(0)
    solution = torch.randn(16, 20, dtype=torch.float64)
    torch.manual_seed(rank)
    net = nn.Linear(20, 16, bias=False).double()
    inputs = torch.randn(60, 20, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    with partavg.attach(net, optimizer, interval=4, parts=parts, wire=wire):
        for _ in range(400):
            optimizer.zero_grad()
            F.mse_loss(net(inputs), inputs @ solution.T).backward()
            optimizer.step()
    return float((net.weight.detach() - solution).norm() / solution.norm())


@pytest.mark.parametrize("parts", [1, 4])
def test_training_ends_where_it_would_have(ranks: Ranks, parts: int) -> None:
    full, *_ = ranks(least_squares, "full", parts)
    for wire, bound in {"int8": 1.1 * full, "int4": 1.1 * full, "top-k": 1e-2}.items():
        found = ranks(least_squares, wire, parts)
        assert found[0] == found[1] == found[2] < bound, wire


def of_four_ranks(rank: int) -> tuple[bool, list[int]]:
    """What four ranks had known goes on here; what rounding lost there begins anew."""
    collective = collective_of("int8")
    known = torch.ones(SIZE, dtype=torch.float64)
    saved = {"known": {0: known}, "late": {0: known}, "late_sum": {0: torch.ones(1, BLOCK)}}
    collective.load(saved, known.device)
    message = torch.cat([known / 3, known.new_empty(collective.room)])
    total = collective(message, 0)()
    collective.load({"known": {0: known[:-1]}}, known.device)
    with pytest.raises(ValueError, match="load checkpoints into the same plan"):
        collective(message, 0)()
    collective.close()
    return torch.allclose(total, known), list(collective.state()["late"])


def test_state_of_another_number_of_ranks_is_loaded(ranks: Ranks) -> None:
    assert ranks(of_four_ranks) == [(True, [])] * 3


def opened_and_closed(rank: int) -> tuple[int, int]:
    """How many files and threads ten models leave open."""

    def trained() -> tuple[int, int]:
        net = nn.Linear(20, 10)
        with partavg.attach(net, interval=1, wire="int4") as averager:
            averager.step()
            averager.step()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before, *_, after = [trained() for _ in range(11)]
    return after[0] - before[0], after[1] - before[1]


def test_nothing_stays_open(ranks: Ranks) -> None:
    for files, threads in ranks(opened_and_closed):
        assert files < 10  # gloo's own thread closes some a moment later
        assert threads < 2


def out_of_memory(rank: int) -> str:
    collective = collective_of("int4")

    def fail(*_: object) -> Any:
        raise torch.OutOfMemoryError("no room")

    message = torch.zeros(SIZE + collective.room)
    collective(message.clone(), 0)()
    with patch.object(collective, "_codec") as codec:
        codec.pack = fail
        try:
            collective(message, 0)()
        except Exception as error:
            return type(error).__name__
        finally:
            collective.close()
    return "nothing"


def test_errors_of_the_thread_keep_their_kind(ranks: Ranks) -> None:
    assert ranks(out_of_memory) == ["OutOfMemoryError"] * 3
