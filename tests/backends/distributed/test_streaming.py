"""Fragments, offsets, mixed averages and fresh columns: attached ranks against the simulator."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, STEPS, WORKERS, Case, attached, distance, model, simulated
from tests.outside import median
from tests.ranks import Ranks
from torch import Tensor, nn

import partavg
from partavg.core.adapt import AdaComm, PostLocal
from partavg.solvers.adam import Adam
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer, fedavgm
from partavg.solvers.sgd import SGD

MOMENTUM = SGD(momentum=0.9, weight_decay=1e-2)
PLAIN = ("SGD", {})
NAMED = [["5.*"], ["0", "1"], ["3.weight"]]
DILOCO = Outer(SGD(momentum=0.9, nesterov=True), 0.7)

CASES = {
    "offsets": Case({"interval": 5, "offsets": (1, 3, 3)}),
    "more parts than steps": Case({"interval": 2, "offsets": (0, 1, 1, 0, 1)}),
    "offsets late": Case({"interval": 5, "offsets": (1, 3, 3), "delay": 4}),
    "offsets and synchronous first": Case(
        {"interval": 5, "offsets": (1, 3, 3), "adapt": PostLocal(4)}
    ),
    "offsets that adapt": Case(
        {"interval": 4, "offsets": (1, 3, 3), "adapt": AdaComm(4)}, settled=(4, 8)
    ),
    "named": Case({"interval": 3, "partition": NAMED}),
    "named, at offsets": Case({"interval": 5, "partition": NAMED, "offsets": (0, 2, 4)}),
    "named and local": Case({"interval": 4, "partition": [["5"], ["0"]], "local": ["3.*", "1.*"]}),
    "strided": Case({"interval": 4, "parts": 2, "partition": "strided"}),
    "sequential": Case({"interval": 4, "parts": 2, "partition": "sequential", "mix": 0.25}),
    "mixed late": Case({"interval": 4, "delay": 2, "mix": 0.25}),
    "taken over late": Case({"interval": 4, "delay": 2, "mix": 0.0}),
    "streaming diloco": Case(
        {
            "interval": 6,
            "partition": NAMED,
            "offsets": (1, 3, 5),
            "delay": 2,
            "mix": 0.5,
            "solver": DILOCO,
        },
        PLAIN,
    ),
    "fresh": Case({"interval": 4, "partition": "fresh"}),
    "fresh now and then": Case({"interval": 6, "parts": 3, "partition": "fresh"}),
    "fresh late": Case({"interval": 6, "parts": 3, "partition": "fresh", "delay": 1}),
    "fresh and local": Case({"interval": 4, "partition": "fresh", "local": ["3.*", "1.*"]}),
    "fresh fedprox": Case({"interval": 4, "partition": "fresh", "solver": FedProx(0.3)}, PLAIN),
    "fresh outer": Case({"interval": 4, "partition": "fresh", "solver": DILOCO}, PLAIN),
    "fresh adam": Case(
        {"interval": 4, "partition": "fresh", "solver": Outer(Adam(), 0.02), "mix": 0.2}, PLAIN
    ),
    "fresh median": Case({"interval": 4, "partition": "fresh", "aggregate": median}),
    "fresh that adapts": Case(
        {"interval": 4, "partition": "fresh", "adapt": AdaComm(4)}, settled=(4, 8)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_stream_as_the_simulator_does(ranks: Ranks, name: str) -> None:
    case = CASES[name]
    solver = case.options.get("solver", MOMENTUM)
    case = Case(case.options, case.optimizer, {"solver": solver}, settled=case.settled)
    expected, found = simulated(case), ranks(attached, case)
    if "local" in case.options:  # the simulator's u has averaged ones
        for end in (rows[-1] for rows in found + expected):
            for own in [name for name in end if name[0] in "31"]:
                del end[own]
    late = case.options.get("delay") and "mix" in case.options
    for rank in range(WORKERS):
        for step, (one, other) in enumerate(zip(found[rank], expected[rank], strict=True), 1):
            # At the end ranks take in what is on its way, which the simulator's u does not.
            if step not in case.settled and not (late and step > STEPS):
                assert distance(one, other) < 1e-10, f"rank {rank}, step {step}"
    assert all(distance(found[0][-1], found[rank][-1]) == 0 for rank in range(WORKERS))
