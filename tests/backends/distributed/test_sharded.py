"""Sharded models: each rank averages its shard, and the result is that of unsharded workers."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends.distributed import sharded_loops as loops
from tests.backends.distributed.loops import distance
from tests.ranks import Ranks, started

from partavg import Partition, Span
from partavg.core.adapt import AdaComm, PostLocal
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import fedavgm
from partavg.solvers.scaffold import SCAFFOLD


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with started(4) as ranks:
        yield ranks


SGD = ("SGD", {"momentum": 0.9})
ADAMW = ("AdamW", {"weight_decay": 0.1})
DILOCO = fedavgm(lr=0.7, momentum=0.9, nesterov=True)


def cut() -> Partition:
    """Three parts of the whole model, cut in the middle of rows."""
    size = sum(tensor.numel() for tensor in loops.model().parameters())
    return Partition(size, ((Span(0, 13), Span(44, 61)), (Span(13, 44),), (Span(61, size),)))


CASES: dict[str, tuple[dict[str, Any], tuple[str, dict[str, Any]]]] = {
    "plain": ({"interval": 3}, SGD),
    "periodic": ({"interval": 3, "parts": 1}, ADAMW),
    "by layer": ({"interval": 4, "partition": "layer"}, ADAMW),
    "blocks": ({"interval": 3, "partition": "blocks", "shuffle": True}, SGD),
    "own partition": ({"interval": 3, "partition": cut()}, SGD),
    "diloco": ({"interval": 3, "solver": DILOCO}, ADAMW),
    "periodic diloco": ({"interval": 3, "parts": 1, "solver": DILOCO}, ADAMW),
    "scaffold": ({"interval": 3, "solver": SCAFFOLD()}, SGD),
    "fedprox": ({"interval": 3, "solver": FedProx(0.3)}, ADAMW),
    "delay": ({"interval": 4, "parts": 2, "delay": 1, "solver": DILOCO}, ADAMW),
    "local": ({"interval": 3, "local": ["3.*"]}, SGD),
    "post-local": ({"interval": 3, "adapt": PostLocal(2)}, SGD),
    "adacomm": ({"interval": 4, "adapt": AdaComm(4)}, SGD),
}


@pytest.mark.parametrize("name", CASES)
def test_fully_sharded_replicas_are_unsharded_workers(four: Ranks, name: str) -> None:
    check(four(loops.compared, loops.fully_sharded, *CASES[name]), sharded=name != "local")


@pytest.mark.parametrize(
    "name", ["plain", "diloco", "scaffold", "fedprox", "delay", "own partition"]
)
def test_tensor_parallel_replicas_are_unsharded_workers(four: Ranks, name: str) -> None:
    check(four(loops.compared, loops.tensor_parallel, *CASES[name]), sharded=True)


def check(answers: list[Any], *, sharded: bool) -> None:
    """Every rank's model after every step is that of its unsharded worker, and all end alike."""
    for rank, (found, _, _) in enumerate(answers):
        expected = answers[rank - rank % 2][1]
        assert len(found) == len(expected) == loops.STEPS + 1
        for one, other in zip(found, expected, strict=True):
            assert distance(one, other) < 1e-9
        assert distance(found[0], answers[0][0][0]) > 1e-6 or rank < 2, "replicas train apart"
        if sharded:
            assert distance(found[-1], answers[0][0][-1]) < 1e-12
