"""Rounded messages: what is lost is sent later, everybody decodes the same, and it is less."""

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import Case, attached, distance
from tests.ranks import Ranks
from torch import Tensor

from partavg.backends.distributed.compressed import Compressed
from partavg.core.wire_formats import WIRE_FORMATS

SIZE, ROUNDS = 1000, 5


def exchanges(rank: int, wire: str) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    """Messages, their sums, what is still owed, for some rounds."""
    codec = WIRE_FORMATS[wire].codec
    assert codec
    assert dist.group.WORLD
    collective = Compressed(dist.group.WORLD, codec, 1 / 3)
    generator = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(ROUNDS):
        message = torch.randn(SIZE, generator=generator, dtype=torch.float64)
        total = collective(torch.cat([message, message.new_empty(collective.room)]), 0)().clone()
        state = collective.state()
        owed = torch.zeros(SIZE, dtype=torch.float64)
        if state["late"]:
            owed += state["late"][0]
            width = state["late_sum"][0].shape[1]
            mine = owed[rank * width : (rank + 1) * width]
            mine += state["late_sum"][0][0, : len(mine)]
        seen.append((message, total, owed, collective.bytes))
    return seen


@pytest.mark.parametrize(("wire", "bytes_", "error"), [("bf16", 2.0, 2e-2), ("int8", 1.02, 5e-2)])
def test_what_rounding_lost_is_sent_later(
    ranks: Ranks, wire: str, bytes_: float, error: float
) -> None:
    rounds = list(zip(*ranks(exchanges, wire), strict=True))
    before = torch.zeros(SIZE, dtype=torch.float64)
    for number, ranked in enumerate(rounds):
        messages, totals, owed, sent = zip(*ranked, strict=True)
        assert all(torch.equal(totals[0], total) for total in totals), "all decode the same"
        exact, late = sum(messages), sum(owed)
        torch.testing.assert_close(totals[0] + late, exact + before, rtol=0, atol=1e-9)
        assert (totals[0] - exact).abs().max() < (error * 3 if number else 1e-12)
        if number:
            per_message = (sent[0] - rounds[number - 1][0][3]) / SIZE
            assert per_message < bytes_ * 1.6  # three shares are filled up to whole blocks
        before = late


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_training_with_rounded_messages_stays_close(ranks: Ranks, wire: str) -> None:
    full = ranks(attached, Case({"interval": 4}), 24)
    rounded = ranks(attached, Case({"interval": 4, "wire": wire, "delay": 0}), 24)
    apart = distance(full[0][-1], full[0][0])
    assert 0 < distance(full[0][-1], rounded[0][-1]) < 0.05 * apart
    assert all(distance(rounded[0][-1], other[-1]) == 0 for other in rounded)
