"""What a pass that is recorded reads, without a GPU: a made-up graph does nothing."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from partavg.core.loop import Batch
from partavg.engines.fused.cuda_graph import Recorded
from partavg.engines.fused.precision import cast


@pytest.mark.parametrize("whole", [False, True])
def test_inputs_are_cast_where_batches_are_copied(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []

    def record(self: Recorded, *given: object) -> None:
        self._graph = SimpleNamespace(replay=lambda: None)
        self._call(*given)

    monkeypatch.setattr(Recorded, "_record", record)
    recorded = Recorded(
        lambda *given: seen.append(given[-1]), partial(cast, compute=torch.bfloat16)
    )
    rows = torch.zeros(2, 5), torch.zeros(2, 1)
    for step in range(4):
        inputs = torch.arange(6).view(2, 3) + step if whole else torch.randn(2, 3)
        batch = Batch(inputs, torch.randn(2, 3), torch.arange(2) + step)
        recorded(*rows, batch)
    first, reads = seen
    assert first.inputs.dtype == reads.inputs.dtype, "what is compiled for the one does for both"
    expected = batch._replace(inputs=inputs if whole else inputs.bfloat16())
    for ours, theirs in zip(reads, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
