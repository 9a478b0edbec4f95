"""What an attached model takes in memory beside itself, its gradients and its optimizer.

For every setting: bytes per parameter that live between steps, those that `partavg plan` says, and
how many more there are for a moment while a part is averaged. On a CPU these are the process's own
(Linux only), on a GPU the allocator's.

    python benchmarks/attach_memory.py                  two gloo processes
    python benchmarks/attach_memory.py --device cuda    one process with NCCL
"""

import argparse
import gc
import multiprocessing
import os
import re
import tempfile
from pathlib import Path
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import partavg
from partavg.core.schedule import Schedule
from partavg.cost.memory import memory_beside
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import diloco, fedadam
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.vrl_sgd import VRLSGD

WIDE, LAYERS, INTERVAL = 1024, 8, 8
FULL, HALF = torch.float32, torch.bfloat16
SETTINGS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "plain": (FULL, {}),
    "delay=1": (FULL, {"delay": 1}),
    "delay=4": (FULL, {"delay": 4}),
    'wire="bf16"': (FULL, {"wire": "bf16"}),
    'wire="int8"': (FULL, {"wire": "int8"}),
    'wire="int8", delay=1': (FULL, {"wire": "int8", "delay": 1}),
    "FedProx": (FULL, {"solver": FedProx()}),
    "VRLSGD": (FULL, {"solver": VRLSGD()}),
    "SCAFFOLD": (FULL, {"solver": SCAFFOLD()}),
    "FedAdam": (FULL, {"solver": fedadam()}),
    "DiLoCo": (FULL, {"solver": diloco()}),
    "DiLoCo, parts=1": (FULL, {"solver": diloco(), "parts": 1}),
    "DiLoCo, delay=1": (FULL, {"solver": diloco(), "delay": 1}),
    'DiLoCo, wire="int8"': (FULL, {"solver": diloco(), "wire": "int8"}),
    'DiLoCo, memory="host"': (FULL, {"solver": diloco(), "memory": "host"}),
    "bf16 model": (HALF, {}),
    "bf16 model, delay=1": (HALF, {"delay": 1}),
    "bf16 model, DiLoCo": (HALF, {"solver": diloco()}),
    'bf16 model, DiLoCo, memory="params"': (HALF, {"solver": diloco(), "memory": "params"}),
    'bf16 model, DiLoCo, memory="params+host"': (
        HALF,
        {"solver": diloco(), "memory": "params+host"},
    ),
}


class Meter:
    """Bytes of this process, now and at most."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def live(self, but: list[Tensor]) -> int:
        """Of all tensors but some."""
        sleep(0.3)  # gloo's threads let go of messages a moment later
        gc.collect()
        mine = {tensor.untyped_storage().data_ptr() for tensor in but}
        stores = [
            thing.untyped_storage()
            for thing in gc.get_objects()
            if type(thing) in (Tensor, nn.Parameter) and thing.device.type == self._device.type
        ]
        sizes = {store.data_ptr(): store.nbytes() for store in stores}
        return sum(size for at, size in sizes.items() if at not in mine)

    def reset(self) -> None:
        """Begin to look for the most."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")
            self._before = self._status("VmRSS")

    def most(self) -> int:
        """How much more there was since then."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self._before
        return self._status("VmHWM") - self._before

    def _status(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return 1024 * int(found[1])


def measured(
    kind: torch.dtype, options: dict[str, Any], device: torch.device
) -> tuple[int, float, float]:
    """Parameters, and bytes of each: those that live between steps, and those at most beside."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(LAYERS))).to(device, kind)
    optimizer, meter = torch.optim.SGD(net.parameters(), lr=1e-4), Meter(device)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    averager = partavg.attach(net, interval=INTERVAL, **{"optimizer": optimizer, **options})
    for _ in range(2 * INTERVAL + 1):
        optimizer.step()
    own = [tensor for p in net.parameters() for tensor in (p, p.grad) if tensor is not None]
    count = sum(p.numel() for p in net.parameters())
    averager.state_dict()  # what is on its way has arrived then
    live = meter.live(own)
    peaks = []
    for _ in range(INTERVAL):
        meter.reset()
        optimizer.step()
        peaks.append(meter.most())
    averager.detach()
    return count, live / count, max(peaks) / count


def work(rank: int, ranks: int, folder: str, device: str) -> None:
    """All settings, one after another; the first rank prints."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    if rank == 0:
        print("| setting | bytes per parameter | as planned | × the model | more while averaging |")
        print("|---|---|---|---|---|")
    for name, (kind, options) in SETTINGS.items():
        if "host" in name and device == "cpu":
            continue
        count, live, peak = measured(kind, options, torch.device(device))
        given = {key: value for key, value in options.items() if key != "parts"}
        schedule = Schedule(INTERVAL, options.get("parts", INTERVAL))
        planned = memory_beside(count, schedule, workers=ranks, width=kind.itemsize, **given)
        if rank == 0:
            times = live / kind.itemsize
            print(
                f"| {name} | {live:.2f} | {planned / count:.2f} | {times:.2f} | {peak:.2f} |",
                flush=True,
            )
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    ranks = 1 if device == "cuda" else 2
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back to the system
    start = multiprocessing.get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            start(target=work, args=(rank, ranks, folder, device)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
