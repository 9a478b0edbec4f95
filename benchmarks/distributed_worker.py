"""One of the processes that benchmarks/distributed.py starts; prints what it measured as JSON."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist
from network import LINK, sent_bytes
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import partavg
from partavg import SGD, Outer
from partavg.models import mlp

Settings = dict[str, Any]
Loop = tuple[nn.Module, Callable[[], object], Callable[[], tuple[int, int]]]
"""The module to call, what to do after a step, bytes and messages counted so far."""

_TIMEOUT = timedelta(seconds=120)


def network_of_ten_million() -> nn.Module:
    """10,020,874 parameters: much to send, little to compute."""
    torch.manual_seed(0)
    return mlp((784,), 10, hidden=(2048, 2048, 2048))


def nothing() -> None:
    """Do nothing after a step."""


def uncounted() -> tuple[int, int]:
    """Bytes and messages of those who do not count them."""
    return 0, 0


@contextmanager
def alone(model: nn.Module, optimizer: torch.optim.Optimizer, interval: int) -> Iterator[Loop]:
    """Train without communication."""
    yield model, nothing, uncounted


@contextmanager
def ddp(model: nn.Module, optimizer: torch.optim.Optimizer, interval: int) -> Iterator[Loop]:
    """Torch's DistributedDataParallel: gradients averaged in every step."""
    yield DistributedDataParallel(model), nothing, uncounted


@contextmanager
def averager(model: nn.Module, optimizer: torch.optim.Optimizer, interval: int) -> Iterator[Loop]:
    """Torch's PeriodicModelAverager."""
    periodic = PeriodicModelAverager(period=interval)
    yield model, lambda: periodic.average_parameters(model.parameters()), uncounted


@contextmanager
def local_sgd(model: nn.Module, optimizer: torch.optim.Optimizer, interval: int) -> Iterator[Loop]:
    """Accelerate's LocalSGD."""
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    wrapped = accelerator.prepare(model)
    with LocalSGD(accelerator=accelerator, model=wrapped, local_sgd_steps=interval) as local:
        yield wrapped, local.step, uncounted


class NeverFails:
    """A manager for torchft whose replicas are all here and stay: it only sums."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self._commits = 0

    def current_step(self) -> int:
        """How many averages there were."""
        return self._commits

    def should_commit(self) -> bool:
        """Every average is taken."""
        self._commits += 1
        return True

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> dist.Work | None:
        """Begin to average."""
        tensor /= dist.get_world_size()
        work: dist.Work | None = dist.all_reduce(tensor, async_op=True)
        return work

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Everything else is about replicas that fail."""
        return lambda *_, **__: None


@contextmanager
def torchft_local_sgd(
    model: nn.Module, optimizer: torch.optim.Optimizer, interval: int
) -> Iterator[Loop]:
    """Torchft's LocalSGD."""
    from torchft import local_sgd as theirs

    manager: Any = NeverFails()
    with theirs.LocalSGD(manager, model, optimizer, sync_every=interval):
        yield model, nothing, uncounted


@contextmanager
def torchft_diloco(
    model: nn.Module, optimizer: torch.optim.Optimizer, interval: int, *, layers: bool, delay: int
) -> Iterator[Loop]:
    """Torchft's DiLoCo: the whole model at once, or a layer after another, perhaps overlapped."""
    from torchft import local_sgd as theirs

    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    fragments = linear if layers else [model]
    outer = [
        torch.optim.SGD(fragment.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        for fragment in fragments
    ]
    manager: Any = NeverFails()
    with theirs.DiLoCo(
        manager, fragments, optimizer, outer, sync_every=interval, fragment_sync_delay=delay
    ):
        yield model, nothing, uncounted


@contextmanager
def ours(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    interval: int,
    *,
    outer: bool = False,
    **options: Any,
) -> Iterator[Loop]:
    """partavg.attach, perhaps with the same outer optimizer."""
    if outer:
        options["solver"] = Outer(SGD(momentum=0.9, nesterov=True), 0.7)
    with partavg.attach(model, optimizer, interval=interval, **options) as attached:
        yield model, nothing, lambda: (attached.bytes, attached.messages)


METHODS: dict[str, Callable[..., AbstractContextManager[Loop]]] = {
    "alone": alone,
    "averager": averager,
    "ddp": ddp,
    "local_sgd": local_sgd,
    "ours": ours,
    "torchft_diloco": torchft_diloco,
    "torchft_local_sgd": torchft_local_sgd,
}


def train(settings: Settings) -> Settings:
    """Warm up, then measure so many iterations."""
    model = network_of_ten_million()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(settings["batch"], 784, generator=generator)
    y = torch.randint(0, 10, (settings["batch"],), generator=generator)

    began = 0.0

    def fill(*_: object) -> None:
        """Sleep for the rest of the step: averaging, registered later, comes after it."""
        sleep(max(0.0, began + settings["step"] - perf_counter()))

    def step(module: nn.Module, after: Callable[[], object]) -> None:
        nonlocal began
        began = perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
        after()

    optimizer.register_step_post_hook(fill)
    options = settings["options"]
    with METHODS[settings["method"]](model, optimizer, settings["interval"], **options) as loop:
        module, after, counted = loop
        for _ in range(settings["warmup"]):
            step(module, after)
        before = sent_bytes(), *counted()
        start = perf_counter()
        for _ in range(settings["iterations"]):
            step(module, after)
        seconds = perf_counter() - start
        changes = [b - a for a, b in zip(before, (sent_bytes(), *counted()), strict=True)]
    per_iteration = [value / settings["iterations"] for value in (seconds, *changes)]
    return dict(zip(("seconds", "bytes", "counted", "messages"), per_iteration, strict=True))


def all_reduces(settings: Settings) -> Settings:
    """Seconds of an all-reduce of each size, repeated."""
    found: dict[str, list[float]] = {}
    for size in settings["sizes"]:
        message = torch.ones(size // 4)
        times = []
        for _ in range(settings["repeats"]):
            dist.barrier()
            began = perf_counter()
            dist.all_reduce(message)
            times.append(perf_counter() - began)
        found[str(size)] = times
    return found


def main() -> None:
    """Join the others, do one task after another, print what came out."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = LINK
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    for task in json.loads(sys.argv[1]):
        found = all_reduces(task) if "sizes" in task else train(task)
        print(json.dumps(found))
        if not dist.get_rank():
            print(f"{task}\n  {found}", file=sys.stderr)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
