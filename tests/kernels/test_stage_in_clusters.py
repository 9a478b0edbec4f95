"""The prototype of a stage in thread-block clusters, on a CPU, against float64."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels import cuda_on_cpu

pytestmark = [
    pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler"),
    pytest.mark.slow,
]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("cut", "workers", "clusters", "early_copies"),
    [
        ({}, 3, 2, False),
        ({}, 1, 1, True),
        ({"GROUPS": 2}, 1, 1, True),
        ({"PRODUCTS": 2, "SUMS": 2}, 1, 1, False),
    ],
)
def test_a_stage_in_clusters(
    cut: dict[str, int],
    workers: int,
    clusters: int,
    early_copies: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By warp groups, four or two, and by warps; a cluster has one worker or some."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    program: Any = import_module("stage_in_clusters")
    monkeypatch.setattr(program, "CONVS", 3)
    torch.manual_seed(0)
    given, own = program.some(workers, torch.device("cpu")), program.Cut(**cut)
    found, packed = program.Found.of(given), program.pack(given.weight)
    text = program.source(own, without=program.OF_GPU)
    run = cuda_on_cpu.built(text, "stage", together=program.BLOCKS)
    stage = cuda_on_cpu.started(run, early_copies=early_copies)
    program.start(stage, own, clusters, given, packed, found)
    worst = program.errors(given, found, range(workers))
    assert not program.wrong(worst)
    assert max(row[5] for row in worst) < 5e-3
    found.y[1, 0, 3, 2] *= 1.1
    assert program.wrong(program.errors(given, found, [0]))
