"""With torchft, replicas are lost and return while the others train on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.backends.distributed import replica
from tests.backends.distributed.replica import INTERVAL, SIZE
from tests.limits import seconds
from tests.processes import context
from torch import Tensor, nn

import partavg

coordination = pytest.importorskip("torchft.coordination")


class Replica:
    def __init__(
        self, folder: Path, name: str, number: int, lighthouse: str, start: float, how: str
    ) -> None:
        self.log = folder / f"{name}.out"
        self.log.touch()
        given = self.log, number, lighthouse, start, folder / "stop", how
        self.process = context.Process(target=replica.main, args=given)
        self.process.start()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def steps(self) -> dict[str, list[float]]:
        return {step: [float(x) for x in values] for step, *values in self.lines()}

    def wait_for(self, count: int) -> None:
        """Until so many lines were told."""
        until = time.monotonic() + seconds()
        while len(self.lines()) < count:
            assert self.process.is_alive(), f"{self.log} ended"
            assert time.monotonic() < until, f"{self.log} is late"
            time.sleep(0.05)


@contextmanager
def lighthouse() -> Iterator[str]:
    """Who does not send a sign of life for 5 s is gone; whoever lives is waited for."""
    server = coordination.LighthouseServer(
        bind="localhost:0",
        min_replicas=1,
        join_timeout_ms=int(1000 * seconds()),
        heartbeat_timeout_ms=5000,
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


class Story(NamedTuple):
    """Where replicas were after each step: two that stayed, and one that was lost and returned."""

    stayed: dict[str, list[float]]
    other: dict[str, list[float]]
    returned: dict[str, list[float]]
    first: int
    """The step at which it returned."""


def lost_and_returned(folder: Path, how: str) -> Story:
    with lighthouse() as address:
        replicas = [
            Replica(folder, str(number), number, address, float(number), how) for number in range(3)
        ]
        try:
            for made in replicas:
                made.wait_for(6)
            replicas[2].process.kill()
            replicas[0].wait_for(len(replicas[0].lines()) + 6)
            back = Replica(folder, "back", 2, address, 1000.0, how)
            replicas.append(back)
            back.wait_for(20)
            stop = folder / "stopping"
            stop.write_text(str(int(back.lines()[-1][0]) + 20))
            stop.rename(folder / "stop")
            for made in (replicas[0], replicas[1], back):
                made.process.join(seconds())
                assert made.process.exitcode == 0, (folder / "back.err").read_text()[-3000:]
        finally:
            for made in replicas:
                made.process.kill()
                made.process.join()
    stayed, other, returned = replicas[0].steps(), replicas[1].steps(), back.steps()
    assert max(map(max, stayed.values())) < 3, "the model of the one that returned came to nobody"
    assert stayed["end"] == other["end"] == returned["end"]
    # Near the end all three pull: the mean of their centers is 1, of two it would be 0.5.
    assert all(abs(value - 1) < 0.2 for value in stayed["end"])
    return Story(stayed, other, returned, int(back.lines()[0][0]))


@pytest.mark.slow
def test_a_replica_is_lost_and_returns(tmp_path: Path) -> None:
    story = lost_and_returned(tmp_path, "plain")
    assert story.first > 8, "it goes on from the others' step"
    width = SIZE // INTERVAL
    assert sum(value < 3 for value in story.returned[str(story.first)]) == width, "one part at once"
    assert max(story.returned[str(story.first + INTERVAL)]) < 3, "it is whole after one cycle"


@pytest.mark.slow
def test_a_replica_that_returns_is_given_the_outer_optimizer(tmp_path: Path) -> None:
    story = lost_and_returned(tmp_path, "streaming")
    assert story.first > 3
    assert max(map(max, story.returned.values())) < 3, "it begins at the others' last averages"


class OneReplica:
    """A manager of one replica, which notes what it is asked and commits as it is told."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.fails = False
        self.heals: dict[str, Any] | None = None

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None:
        self.load, self.save = load, save

    def start_quorum(self, shrink_only: bool = False) -> None:
        self.asked.append(shrink_only)
        if self.heals is not None:
            self.load(self.heals)
            self.heals = None

    def allreduce(self, tensor: Tensor, reduce_op: Any = None) -> "OneReplica":
        self.sent = tensor.clone()
        return self

    def wait(self) -> None:
        pass

    def should_commit(self) -> bool:
        return not self.fails


def alone(**options: Any) -> tuple[nn.Linear, torch.optim.SGD, OneReplica, Any]:
    net = nn.Linear(2, 6, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    manager = OneReplica()
    return net, optimizer, manager, partavg.attach(net, optimizer, manager=manager, **options)


def step(net: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net.weight.square().sum().backward()
    optimizer.step()


def test_who_joins_begins_with_the_first_part_of_a_step() -> None:
    net, optimizer, manager, averager = alone(interval=3, offsets=(1, 1, 2))
    for _ in range(3):
        step(net, optimizer)
    assert manager.asked == [False, False, True, False]
    averager.consensus()
    assert len(manager.asked) > 4
    assert all(manager.asked[4:]), "nobody joins those who leave"
    averager.detach()


def test_the_consensus_outlives_messages_that_fail() -> None:
    net, optimizer, manager, averager = alone(interval=3)
    step(net, optimizer)
    manager.fails = True
    before = net.weight.detach().clone()
    averager.consensus()
    assert torch.equal(net.weight.detach(), before)
    averager.detach()


@pytest.mark.parametrize("delay", [0, 1])
def test_an_averaging_that_fails_changes_nothing(delay: int) -> None:
    options = {"interval": 4, "parts": 2, "delay": delay, "solver": partavg.fedavgm(momentum=0.5)}
    net, optimizer, manager, averager = alone(**options)
    manager.fails = True
    before = {name: entry.clone() for name, entry in averager._row.memory.items()}
    twin = net.weight.detach().clone()
    for _ in range(8):
        step(net, optimizer)
        twin -= 0.1 * 2 * twin
    torch.testing.assert_close(net.weight.detach(), twin)
    for name, entry in averager._row.memory.items():
        assert torch.equal(entry, before[name]), name
    if not delay:
        assert averager._row.steps.tolist() == [[8.0, 8.0]], "since the last averaging"
    averager.detach()


def test_one_that_missed_an_averaging_begins_at_the_others_averages() -> None:
    options = {"interval": 4, "parts": 2, "solver": partavg.fedavgm(momentum=0.5)}
    net, optimizer, manager, averager = alone(**options)
    other, stepping, ahead, theirs = alone(**options)
    for _ in range(4):
        step(other, stepping)
        step(net, optimizer)
    step(other, stepping)
    step(net, optimizer)
    manager.heals = ahead.save()
    expected = manager.heals["memory"]["anchor"].clone()
    step(net, optimizer)
    assert not manager.sent.any(), "it has nothing to say yet"
    shared = averager._row.memory
    assert torch.equal(net.weight.detach().flatten(), expected[0])
    assert all(torch.equal(entry, ahead.save()["memory"][name]) for name, entry in shared.items())
    for each in (averager, theirs):
        each.detach()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"solver": partavg.SCAFFOLD()}, "solver SCAFFOLD .*each replica has its own control, and"),
        ({"wire": "int8"}, "wire 'int8' does not go with a manager: rounded messages say how"),
        ({"partition": "fresh"}, "'fresh' does not go with a manager: .* never get every column"),
        ({"delay": 1}, "delay 1 .* the next part is due after 1 steps"),
        ({"adapt": partavg.PostLocal(2)}, "adapt PostLocal does not go with a manager"),
    ],
)
def test_what_does_not_go_with_a_manager_is_said(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        alone(interval=4, **options)
