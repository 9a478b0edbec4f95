"""A replica under torchft, in a process of its own.

Its one weight vector moves to a center of its own; a line per step tells where it is. It ends
after the step that the file STOP names.
"""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.limits import seconds
from torch import nn
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

import partavg

INTERVAL, SIZE = 3, 6
HOW: dict[str, dict[str, Any]] = {
    "plain": {"interval": INTERVAL},
    "streaming": {
        "interval": 5,
        "parts": 2,
        "offsets": (1, 4),
        "delay": 1,
        "mix": 0.25,
        "solver": partavg.fedavgm(lr=0.8, momentum=0.3, nesterov=True),
    },
}


def main(log: Path, number: int, lighthouse: str, start: float, stop: Path, how: str) -> None:
    for stream, path in enumerate((log, log.with_suffix(".err")), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=seconds())
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=limit,
        rank=0,
        world_size=1,
        replica_id=f"replica{number}",
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
    )
    net = nn.Linear(1, SIZE, bias=False)
    nn.init.constant_(net.weight, start)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with partavg.attach(net, optimizer, manager=manager, **HOW[how]) as averager:
        tell(averager.steps, net)
        while not stop.exists() or averager.steps < int(stop.read_text()):
            optimizer.zero_grad()
            (0.5 * (net.weight - number).square().sum()).backward()
            optimizer.step()
            tell(averager.steps, net)
            time.sleep(0.05)
    tell("end", net)
    manager.shutdown(wait=False)


def tell(step: object, net: nn.Linear) -> None:
    print(step, *net.weight.flatten().tolist(), flush=True)
