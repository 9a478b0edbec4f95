"""Real processes in a real process group, kept for many tests since their start takes seconds."""

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.limits import seconds
from tests.processes import context


class Ranks:
    """Runs a function on all ranks at once."""

    def __init__(self, count: int, folder: Path) -> None:
        pipes = [context.Pipe() for _ in range(count)]
        self.processes = [
            context.Process(target=_serve, args=(rank, count, folder, pipe[1]), daemon=True)
            for rank, pipe in enumerate(pipes)
        ]
        self._pipes = [pipe[0] for pipe in pipes]
        for process in self.processes:
            process.start()

    def __len__(self) -> int:
        return len(self._pipes)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function returns on each rank; called with the rank first."""
        answers = self.answers(function, *arguments)
        failed = [answer for done, answer in answers if not done]
        assert not failed, failed[0]
        return [answer for _, answer in answers]

    def answers(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[bool, Any]]:
        """For each rank whether it did, and what it returned or the error's text."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return [self._answer(pipe) for pipe in self._pipes]

    def _answer(self, pipe: Connection) -> tuple[bool, Any]:
        try:
            if pipe.poll(seconds()):
                done, answer = pipe.recv()
                return done, answer
        except EOFError:
            return False, "gone"
        return False, "no answer"

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@contextmanager
def started(count: int) -> Iterator[Ranks]:
    """Ranks that are stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(count, Path(folder))
        try:
            yield ranks
        finally:
            ranks.stop()


def _serve(rank: int, count: int, folder: Path, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("ignore", ResourceWarning)
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), count)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=seconds())
    )
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, function(rank, *arguments)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
