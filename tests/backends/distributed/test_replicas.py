"""With torchft, replicas are lost and return while the others train on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.backends.distributed.replica import INTERVAL, SIZE
from tests.limits import seconds

coordination = pytest.importorskip("torchft.coordination")
ROOT = Path(__file__).parents[3]


class Replica:
    def __init__(self, folder: Path, name: str, number: int, lighthouse: str, start: float) -> None:
        self.log = folder / f"{name}.out"
        command = [sys.executable, "-W", "ignore", "-m", "tests.backends.distributed.replica"]
        with self.log.open("w") as out, (folder / f"{name}.err").open("w") as err:
            self.process = subprocess.Popen(
                [*command, str(number), lighthouse, str(start), str(folder / "stop")],
                cwd=ROOT,
                stdout=out,
                stderr=err,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            )

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def steps(self) -> dict[str, list[float]]:
        return {step: [float(x) for x in values] for step, *values in self.lines()}

    def wait_for(self, count: int) -> None:
        """Until so many lines were told."""
        until = time.monotonic() + seconds()
        while len(self.lines()) < count:
            assert self.process.poll() is None, f"{self.log} ended"
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


@pytest.mark.slow
def test_a_replica_is_lost_and_returns(tmp_path: Path) -> None:
    with lighthouse() as address:
        replicas = [
            Replica(tmp_path, str(number), number, address, float(number)) for number in range(3)
        ]
        try:
            for replica in replicas:
                replica.wait_for(6)
            replicas[2].process.send_signal(signal.SIGKILL)
            replicas[0].wait_for(len(replicas[0].lines()) + 6)
            back = Replica(tmp_path, "back", 2, address, 1000.0)
            replicas.append(back)
            back.wait_for(20)
            stop = tmp_path / "stopping"
            stop.write_text(str(int(back.lines()[-1][0]) + 20))
            stop.rename(tmp_path / "stop")
            for replica in (replicas[0], replicas[1], back):
                assert replica.process.wait(seconds()) == 0, (tmp_path / "back.err").read_text()[
                    -3000:
                ]
        finally:
            for replica in replicas:
                replica.process.kill()
                replica.process.wait()

    stayed, other, returned = replicas[0].steps(), replicas[1].steps(), back.steps()
    assert max(map(max, stayed.values())) < 3, "the model of the one that returned came to nobody"
    first = int(back.lines()[0][0])
    assert first > 8, "it goes on from the others' step"
    width = SIZE // INTERVAL
    assert sum(value < 3 for value in returned[str(first)]) == width, "one part came at once"
    whole = returned[str(first + INTERVAL)]
    assert max(whole) < 3, "it is whole after one cycle"
    assert stayed["end"] == other["end"] == returned["end"]
    # Near the end all three pull: the mean of their centers is 1, of two it would be 0.5.
    assert all(abs(value - 1) < 0.15 for value in stayed["end"])
