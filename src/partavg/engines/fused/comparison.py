"""Operations beside their references: what their benchmarks time, and what tests compare."""

import argparse
from collections.abc import Callable, Iterator
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.rows import Rows
from partavg.kernels.streams import wait_for_side_stream


class Setting(NamedTuple):
    """Where activations are, of which type, and how many."""

    device: torch.device
    dtype: torch.dtype
    workers: int
    samples: int
    """Of a worker."""

    @property
    def kept(self) -> torch.dtype:
        """The type of parameters."""
        return torch.float32 if self.dtype == torch.bfloat16 else self.dtype

    def activations(self, *shape: int, gradient: bool = True) -> Tensor:
        """Random numbers [m, n, …]; those of images have channels last in memory, as in a pass."""
        x = torch.randn(self.workers, self.samples, *shape, device=self.device).to(self.dtype)
        if len(shape) == 3:
            x = channels_first(channels_last(x))
        return x.requires_grad_(gradient)

    def parameters(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Random numbers [m, …]."""
        p = torch.randn(self.workers, *shape, device=self.device).to(self.kept)
        return p.mul_(scale).requires_grad_()


class Comparison(NamedTuple):
    """Two functions of the same tensors."""

    title: str
    operation: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    given: tuple[Tensor, ...]

    def run(self, function: Callable[..., Tensor], outer: Tensor | None = None) -> list[Tensor]:
        """Its outputs, and the gradients of all tensors that need one."""
        y = function(*self.given)
        leaves = [tensor for tensor in self.given if tensor.requires_grad]
        grads = torch.autograd.grad(y, leaves, _outer(y) if outer is None else outer)
        wait_for_side_stream(y.device)
        return [y.detach(), *grads]

    def ratios(self, rounds: int, warm: int = 3) -> list[float]:
        """How many times as long the reference takes, forward and backward, round by round."""
        found, outer = [], _outer(self.operation(*self.given))
        for number in range(warm + rounds):
            ours, theirs = (self._seconds(f, outer) for f in (self.operation, self.reference))
            if number >= warm:
                found.append(theirs / ours)
        return found

    def _seconds(self, function: Callable[..., Tensor], outer: Tensor) -> float:
        self._wait()
        began = perf_counter()
        self.run(function, outer)
        self._wait()
        return perf_counter() - began

    def _wait(self) -> None:
        if self.given[0].is_cuda:
            torch.cuda.synchronize(self.given[0].device)


def _outer(y: Tensor) -> Tensor:
    """Gradients of outputs, all of them different; they lie as the outputs do."""
    return torch.ones_like(y).cumsum(-1).cos().detach()


def main(
    comparisons: Callable[[Setting], Iterator[Comparison]], arguments: list[str] | None = None
) -> None:
    """Time the comparisons on the device there is, and print them."""
    parser = argparse.ArgumentParser(description="An operation against its slow reference.")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args(arguments).rounds
    if rounds < 2:
        parser.error(f"--rounds {rounds} is too few for quartiles: use 2 or more")
    gpu = torch.cuda.is_available()
    setting = Setting(torch.device("cuda"), torch.bfloat16, 128, 32)
    if not gpu:
        setting = Setting(torch.device("cpu"), torch.float32, 4, 8)
    print(
        f"{torch.cuda.get_device_name() if gpu else 'CPU'}, torch {torch.__version__}: "
        f"{setting.workers} workers, {setting.samples} samples each, {setting.dtype}"
    )
    if not device_of(torch.empty(1, device=setting.device)).triton:
        print("There are no kernels for this device: operations are plain torch, too.")
    torch.manual_seed(0)
    for each in comparisons(setting):
        ratios = each.ratios(rounds)
        low, _, high = quantiles(ratios, n=4)
        print(
            f"{each.title}: the reference takes {median(ratios):.2f} times as long "
            f"(quartiles {low:.2f} to {high:.2f}, n = {rounds})",
            flush=True,
        )


def rows_of(setting: Setting, **tensors: Tensor) -> Rows:
    """The tensors of a layer without a name."""
    keys = torch.arange(setting.workers, device=setting.device)
    return Rows(tensors, keys, setting.dtype)
