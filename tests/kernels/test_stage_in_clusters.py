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


@pytest.mark.parametrize(("workers", "early_copies"), [(2, False), (1, True)])
def test_a_stage_in_clusters(
    workers: int, early_copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    program: Any = import_module("stage_in_clusters")
    monkeypatch.setattr(program, "CONVS", 3)
    torch.manual_seed(0)
    given = program.some(workers, torch.device("cpu"))
    found, packed = program.Found.of(given), program.pack(given.weight)
    text = program.source(program.OURS, without=(*cuda_on_cpu.OF_GPU, program.OWN[0]))
    run = cuda_on_cpu.built(text, "stage", together=program.BLOCKS)
    stage = cuda_on_cpu.started(run, early_copies=early_copies)
    program.start(stage, given, packed, found)
    assert not program.wrong(program.errors(given, found))
    found.y[1, 0, 3, 2] *= 1.1
    assert program.wrong(program.errors(given, found))
