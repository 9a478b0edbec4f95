from pathlib import Path

import pytest
import torch

from partavg.data import DATASETS


def test_the_subset_is_what_it_says() -> None:
    data = DATASETS["fashion_subset"](Path("nowhere"))
    assert data.train.inputs.shape == (12_000, 1, 28, 28)
    assert data.test.inputs.shape == (2_000, 1, 28, 28)
    assert data.shape == (1, 28, 28)
    assert data.train.targets.bincount().tolist() == [
        1122, 1220, 1201, 1212, 1181, 1204, 1244, 1192, 1195, 1229,
    ]  # fmt: skip
    assert data.train.inputs.float().mean() / 255 == pytest.approx(0.286, abs=1e-3)
    assert data.train.targets[:5].tolist() == [9, 0, 0, 3, 0]
    assert data.test.targets[:5].tolist() == [9, 2, 1, 1, 6]
    assert data.test.inputs.dtype == torch.uint8
