"""What `partavg.attach` adds to a step, with one process and so nobody to wait for.

    python benchmarks/attach.py

Both sides take turns within one run; times are medians, the ratio is the median of the ratios round
by round.
"""

import os
import platform
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from distributed_worker import network_of_ten_million
from torch.nn import functional as F

import partavg
from engines import spread, take_turns

INTERVAL, BATCHES, ROUNDS = 8, (32, 128), 31


def cycle(stack: ExitStack, batch: int, **attached: Any) -> Callable[[], None]:
    """As many steps as there are parts, so that each is averaged once."""
    model = network_of_ten_million()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    if attached:
        stack.enter_context(partavg.attach(model, optimizer, **attached))

    def steps() -> None:
        for _ in range(INTERVAL):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return steps


def compare(batch: int) -> None:
    """Time both sides."""
    with ExitStack() as stack:
        sides = {"plain": cycle(stack, batch), "attached": cycle(stack, batch, interval=INTERVAL)}
        times = take_turns(ROUNDS, **sides)
    ratio = median(a / b for a, b in zip(times["attached"], times["plain"], strict=True))
    print(f"\n{INTERVAL} steps of 10 M parameters, batch {batch}")
    for name, seconds in times.items():
        print(f"  {name:10} {spread(seconds)}")
    print(f"  attached / plain = {ratio:.4f}")


def main() -> None:
    """Time small and large batches."""
    torch.set_num_threads(1)
    print(f"{platform.platform()}, {os.cpu_count()} cores, torch {torch.__version__}, 1 thread")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for batch in BATCHES:
        compare(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
