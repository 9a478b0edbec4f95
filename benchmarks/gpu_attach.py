"""Whether attach works on a GPU, over NCCL and with FSDP2: one rank is enough.

    python benchmarks/gpu_attach.py [--device cpu]

A small model is trained whole and sharded over a mesh of 1 × 1, both attached, and must end alike;
with bf16 mixed precision also as without averaging, which for one replica changes nothing. Prints a
line per check, and ends with 1 if one of them fails.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import partavg
from partavg.backends.distributed import Averager
from partavg.backends.distributed.trailer import NotFinite
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import fedavgm
from partavg.solvers.scaffold import SCAFFOLD

STEPS = 24
DILOCO = fedavgm(lr=0.7, momentum=0.9, nesterov=True)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("AdamW", {"interval": 4}),
    "periodic": ("AdamW", {"interval": 4, "parts": 1}),
    "DiLoCo": ("AdamW", {"interval": 4, "solver": DILOCO}),
    "DiLoCo, delayed": ("AdamW", {"interval": 4, "parts": 2, "delay": 1, "solver": DILOCO}),
    "FedProx": ("AdamW", {"interval": 4, "solver": FedProx(0.3)}),
    "SCAFFOLD": ("SGD", {"interval": 4, "solver": SCAFFOLD()}),
    "int8": ("AdamW", {"interval": 4, "wire": "int8"}),
}


class Bench:
    """The device, its mesh, and what failed so far."""

    def __init__(self, device: str) -> None:
        self.device, self.failed = device, 0
        self.mesh: DeviceMesh = init_device_mesh(
            device, (1, 1), mesh_dim_names=("replicate", "shard")
        )

    def model(self, dtype: torch.dtype, *, sharded: bool, mixed: bool = False) -> nn.Module:
        """A model from a seed."""
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(33, 65), nn.LayerNorm(65), nn.GELU(), nn.Linear(65, 63), nn.GELU(),
            nn.Linear(63, 7),
        ).to(self.device, dtype)  # fmt: skip
        if sharded:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if mixed else None)
            for layer in (net[0], net[3]):
                fully_shard(layer, mesh=self.mesh["shard"], mp_policy=policy)
            fully_shard(net, mesh=self.mesh["shard"], mp_policy=policy)
        return net

    def attached(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, sharded: bool, options: Any
    ) -> Averager:
        """Averaged along the mesh, if it is sharded."""
        along = self.mesh["replicate"] if sharded else None
        averager: Averager = partavg.attach(net, optimizer, mesh=along, **options)
        return averager

    def train(self, net: nn.Module, optimizer: torch.optim.Optimizer, first: int = 0) -> None:
        """Steps on random samples, the same for all."""
        generator = torch.Generator().manual_seed(1)
        dtype = next(net.parameters()).dtype
        batches = torch.randn(STEPS, 16, 33, generator=generator, dtype=torch.float64)
        for inputs in batches[first:].to(self.device, dtype):
            optimizer.zero_grad()
            loss: Any = F.mse_loss(net(inputs).to(dtype), inputs[:, :7].sin())
            loss.backward()
            optimizer.step()

    def check(self, name: str, do: Callable[[], str]) -> None:
        """Print whether it does; an empty string is good."""
        try:
            problem = do()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self.failed += bool(problem)
        print(f"{'failed' if problem else 'ok':<8}{name}{': ' if problem else ''}{problem}")

    def result(
        self, setting: str, dtype: torch.dtype, *, sharded: bool, mixed: bool = False
    ) -> dict[str, Tensor]:
        """The consensus after training."""
        kind, options = SETTINGS[setting]
        net = self.model(dtype, sharded=sharded, mixed=mixed)
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)
        with self.attached(net, optimizer, sharded, options):
            self.train(net, optimizer)
        return whole(net)


def whole(net: nn.Module) -> dict[str, Tensor]:
    """A copy of a model, each tensor in one piece."""
    state: dict[str, Any] = net.state_dict()
    return {
        name: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone()
        for name, t in state.items()
    }


def apart(one: dict[str, Tensor], other: dict[str, Tensor], limit: float) -> str:
    """By how much two models differ, if by more than a limit."""
    most = max(float((one[name] - other[name]).abs().max()) for name in other)
    return "" if most <= limit else f"differs by {most:.1e}, {limit:.0e} is allowed"


def as_unsharded(bench: Bench, setting: str, dtype: torch.dtype, limit: float) -> str:
    """The shards' averages are those of the whole."""
    sharded = bench.result(setting, dtype, sharded=True)
    return apart(sharded, bench.result(setting, dtype, sharded=False), limit)


def mixed_precision(bench: Bench) -> str:
    """One replica's average is itself."""
    net = bench.model(torch.float32, sharded=True, mixed=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    bench.train(net, optimizer)
    return apart(bench.result("plain", torch.float32, sharded=True, mixed=True), whole(net), 0.0)


def not_finite(bench: Bench) -> str:
    """A sentence names the rank."""
    net = bench.model(torch.float32, sharded=True)
    averager = partavg.attach(net, interval=2, mesh=bench.mesh["replicate"])
    with torch.no_grad():
        next(net.parameters()).fill_(torch.nan)
    try:
        for _ in range(4):  # on a GPU the next message tells
            averager.step()
    except NotFinite as error:
        said = str(error)
        return "" if said.startswith("rank 0 sent a number that is not finite") else said
    finally:
        averager.detach()
    return "nobody noticed"


def resumed(bench: Bench) -> str:
    """What goes on is what was never stopped, to the bit."""
    kind, options = SETTINGS["DiLoCo"]
    kept = io.BytesIO()
    for half in (0, 1):
        net = bench.model(torch.float32, sharded=True)
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)
        averager = bench.attached(net, optimizer, True, options)
        things = {"net": net, "optimizer": optimizer, "averager": averager}
        if half:
            loaded = torch.load(io.BytesIO(kept.getvalue()), weights_only=True)
            for name, thing in things.items():
                thing.load_state_dict(loaded[name])
            bench.train(net, optimizer, STEPS // 2)
            averager.consensus()
        else:
            stop = optimizer.register_step_post_hook(_stopping(averager))
            try:
                bench.train(net, optimizer)
            except StopIteration:
                stop.remove()
            torch.save({name: thing.state_dict() for name, thing in things.items()}, kept)
        averager.detach()
    return apart(whole(net), bench.result("DiLoCo", torch.float32, sharded=True), 0.0)


def _stopping(averager: Averager) -> Callable[..., None]:
    def stop(*_: object) -> None:
        if averager.steps == STEPS // 2:
            raise StopIteration

    return stop


def main() -> int:
    """All checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    device = parser.parse_args().device
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {where}, {dist.get_backend()}")
    bench = Bench(device)
    for name in SETTINGS:
        for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
            kind = str(dtype).removeprefix("torch.")
            bench.check(f"{name}, {kind}", partial(as_unsharded, bench, name, dtype, limit))
    bench.check("bf16 mixed precision", partial(mixed_precision, bench))
    bench.check("a number that is not finite", partial(not_finite, bench))
    bench.check("resumed", partial(resumed, bench))
    dist.destroy_process_group()
    return bool(bench.failed)


if __name__ == "__main__":
    sys.exit(main())
