"""What tells data from others."""

import pytest
import torch
from torch import Tensor

from partavg import Dataset
from partavg.data import fingerprint as module
from partavg.data.fingerprint import fingerprint


@pytest.mark.parametrize(
    "kind",
    [torch.uint8, torch.int16, torch.int64, torch.bool, torch.float32, torch.bfloat16],
)
def test_any_change_of_a_small_tensor_is_seen(kind: torch.dtype) -> None:
    tensor = (torch.arange(60) % 2).view(6, 10).to(kind)
    changed = tensor.clone()
    changed[3, 7] = 1 - changed[3, 7].to(torch.int64)
    others = [changed, tensor.view(10, 6), tensor[:5], tensor.double()]
    prints = [fingerprint([one]) for one in (tensor, *others)]
    assert fingerprint([tensor.clone()]) == prints[0]
    assert len(set(prints)) == len(prints)


def test_tokens_that_share_their_memory_are_read() -> None:
    words = (torch.arange(500) % 9).to(torch.int16).view(torch.uint16)
    assert fingerprint([words.unfold(0, 20, 5)]) == fingerprint([words.clone().unfold(0, 20, 5)])


def test_of_a_large_tensor_some_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HASHED", 4 * 30)
    tensor = torch.zeros(1000, 10)
    changed = [tensor.clone(), tensor.clone()]
    changed[0][1], changed[1][333] = 1, 1
    whole, between, at = (fingerprint([one]) for one in (tensor, *changed))
    assert whole == between != at


def test_samples_and_whose_they_are_count() -> None:
    def made(x: Tensor, y: Tensor, writers: Tensor) -> dict[str, str]:
        return Dataset((x, y), (x[:2], y[:2]), 2, writers).fingerprints

    x, y, writers = torch.randn(8, 3), torch.arange(8) % 2, torch.arange(8) // 2
    first = made(x, y, writers)
    assert made(x.clone(), y.clone(), writers.clone()) == first
    assert made(x, y, writers.flip(0))["train"] != first["train"]
    assert made(x, y, writers.flip(0))["test"] == first["test"]
    assert made(x, 1 - y, writers)["test"] != first["test"]
