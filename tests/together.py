"""Real processes that simulate together, started for a test and ended with it."""

import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from tests.limits import seconds
from tests.processes import context
from torch.distributed import FileStore

from partavg.backends.ranks import Ranks


def together(size: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(processes, *arguments)` returns in each of so many new processes."""
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(pipe, rank, size, str(folder), work, arguments))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    try:
        return [_received(receiver) for receiver, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(pipe: Connection) -> Any:
    assert pipe.poll(seconds()), "no answer"
    value = pickle.loads(pipe.recv_bytes())
    assert not isinstance(value, str), value
    return value


def _rank(
    pipe: Connection, rank: int, size: int, folder: str, work: Callable[..., Any], arguments: tuple
) -> None:
    torch.set_num_threads(1)
    processes = Ranks(FileStore(f"{folder}/store", size), rank, size, timeout=seconds())
    try:
        result = work(processes, *arguments)
    except BaseException:
        result = traceback.format_exc()
    pipe.send_bytes(pickle.dumps(result))
    processes.roll.close()
    processes.part()
