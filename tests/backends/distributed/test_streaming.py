"""Fragments, offsets, mixed averages and fresh columns: attached ranks against the simulator."""

from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import (
    BATCH,
    LR,
    STEPS,
    WORKERS,
    Case,
    attached,
    distance,
    model,
    samples,
    simulated,
    split,
)
from tests.outside import median
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Span
from partavg.core.adapt import AdaComm, PostLocal
from partavg.core.fresh import Fresh
from partavg.data.batches import Batches
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


def worker_step(net: nn.Module, rank: int, step: int) -> None:
    """A step of plain SGD."""
    inputs, targets = samples()
    chosen = Batches(split(), BATCH, 0)(step, None)[0][rank]
    net.zero_grad()
    F.cross_entropy(net(inputs[chosen]), targets[chosen]).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= LR * parameter.grad


def streaming_diloco(
    fragments: list[list[str]], offsets: list[int], interval: int, overlap: int, alpha: float
) -> list[list[dict[str, Tensor]]]:
    """Algorithm 2 of the paper, one worker and one tensor at a time; Nesterov 0.7, 0.9."""
    nets = [model() for _ in range(WORKERS)]
    workers = [dict(net.named_parameters()) for net in nets]
    theta = {name: tensor.detach().clone() for name, tensor in workers[0].items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    sent: dict[int, list[tuple[str, Tensor]]] = {}
    seen: list[list[dict[str, Tensor]]] = [[] for _ in nets]
    for t in range(1, STEPS + 1):
        for rank, net in enumerate(nets):
            worker_step(net, rank, t)
        for names, offset in zip(fragments, offsets, strict=True):
            if (t - offset) % interval == 0:
                sent[t + overlap] = [
                    (n, sum(theta[n] - x[n].detach() for x in workers) / WORKERS) for n in names
                ]
        for name, delta in sent.pop(t, []):
            velocity[name] = 0.9 * velocity[name] + delta
            theta[name] = theta[name] - 0.7 * (delta + 0.9 * velocity[name])
            for x in workers:
                x[name].data = alpha * x[name].data + (1 - alpha) * theta[name]
        for row, net in zip(seen, nets, strict=True):
            row.append({n: p.detach().clone() for n, p in net.named_parameters()})
    return seen


@pytest.mark.parametrize(("overlap", "alpha"), [(0, 0.0), (0, 0.3), (2, 0.0), (2, 0.5)])
def test_it_is_streaming_diloco_by_the_book(ranks: Ranks, overlap: int, alpha: float) -> None:
    fragments = [["5.weight", "5.bias"], ["0.weight", "1.weight", "1.bias"]]
    fragments.append(["3.weight", "3.bias"])
    expected = streaming_diloco(fragments, [1, 3, 5], 7, overlap, alpha)
    options: dict[str, Any] = {"interval": 7, "offsets": (1, 3, 5), "partition": fragments}
    case = Case({**options, "delay": overlap, "mix": alpha, "solver": DILOCO}, PLAIN)
    for found in (simulated(case), ranks(attached, case)):
        for rank in range(WORKERS):
            for step, (one, other) in enumerate(zip(expected[rank], found[rank], strict=False), 1):
                assert distance(one, other) < 1e-10, f"rank {rank}, step {step}"


def sparta(one_in: int, every: int, momentum: float | None) -> list[list[dict[str, Tensor]]]:
    """After every few steps the mean of some columns, which an outer step may follow."""
    nets = [model() for _ in range(WORKERS)]
    size = sum(p.numel() for p in nets[0].parameters())
    fresh = Fresh((Span(0, size),), one_in, seed=0)
    theta = torch.cat([p.detach().flatten() for p in nets[0].parameters()])
    velocity = torch.zeros_like(theta)
    seen: list[list[dict[str, Tensor]]] = [[] for _ in nets]
    for step in range(1, STEPS + 1):
        for rank, net in enumerate(nets):
            worker_step(net, rank, step)
        if step % every == 0:
            rows = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets]
            turn = step // every % one_in
            for column in torch.cat(list(fresh(step, turn))).tolist():
                mean = sum(row[column] for row in rows) / WORKERS
                if momentum is not None:
                    delta = theta[column] - mean
                    velocity[column] = momentum * velocity[column] + delta
                    mean = theta[column] - velocity[column]
                theta[column] = mean
                for row in rows:
                    row[column] = mean
            for net, row in zip(nets, rows, strict=True):
                nn.utils.vector_to_parameters(row, net.parameters())
        for row, net in zip(seen, nets, strict=True):
            row.append({n: p.detach().clone() for n, p in net.named_parameters()})
    return seen


@pytest.mark.parametrize("momentum", [None, 0.5])
@pytest.mark.parametrize(("parts", "every"), [(4, 1), (3, 2)])
def test_fresh_columns_are_sparta_by_the_book(
    ranks: Ranks, parts: int, every: int, momentum: float | None
) -> None:
    expected = sparta(parts, every, momentum)
    solver = {"solver": fedavgm(momentum=momentum)} if momentum else {}
    options = {"interval": parts * every, "parts": parts, "partition": "fresh", **solver}
    case = Case(options, PLAIN)
    for found in (simulated(case), ranks(attached, case)):
        for rank in range(WORKERS):
            for step, (one, other) in enumerate(zip(expected[rank], found[rank], strict=False), 1):
                assert distance(one, other) < 1e-10, f"rank {rank}, step {step}"
