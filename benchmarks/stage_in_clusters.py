"""A stage of ResNet-20 that does not leave the processors, beside the engine's kernels for it.

    python benchmarks/stage_in_clusters.py [--workers 128] [--rounds 30] [--check]

A prototype, for Hopper: five convolutions of 64 channels, 8 x 8 pixels, with their BatchNorms,
additions and ReLUs, forward, of workers with 32 images each. Four blocks, a thread-block cluster,
hold a worker's images in shared memory and its sums in registers. It writes what the way back of
the engine needs: outputs before and after each norm, means and deviations.

First it is compared with float64 and with the engine's kernels: exit code 1 if its numbers are
wrong, or not the same bits a second time. Then both are timed, and variants that tell where its
time goes.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from gpu import steady
from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused import convolution
from partavg.engines.fused.convolution.cuda_sources import add_product
from partavg.engines.fused.convolution.tiling import Tiling

CONVS, CHANNELS, IMAGES, SIDE = 5, 64, 32, 8
EPS = 1e-5
BLOCKS = 4
"""Of a cluster."""
GROUPS = 4
"""Of four warps, in a block."""
DEPTH = 16
"""Taps in shared memory."""
MEMORY = (
    CHANNELS * 2 * ((SIDE + 2) * (SIDE + 1) * (IMAGES // BLOCKS) + 1)  # pixels with their rims
    + DEPTH * CHANNELS * CHANNELS * 2  # weights
    + 8 * CHANNELS * (GROUPS + 2 * BLOCKS + 1)  # sums
    + 8 * (DEPTH + 2)  # barriers
)
"""Shared memory of a block, in bytes."""
OF_PACKAGE = "instructions", "halves", "warpgroups"
OWN = "stage_in_clusters_instructions", "stage_in_clusters"
"""Files of the kernel's text, the package's and those beside this one."""
SETS = 3
"""Inputs in turn, so that the L2 has none of them."""
OURS = "a cluster for each worker"
VARIANTS = {
    OURS: {"PRODUCTS": 1, "WRITE": 1},
    "nothing written but the last": {"PRODUCTS": 1, "WRITE": 0},
    "no products": {"PRODUCTS": 0, "WRITE": 1},
}
"""The kernel, and two that tell where its time goes."""


class Given(NamedTuple):
    """The inputs of a stage."""

    x: Tensor
    """[m, n, h, w, c] in bf16, as are all pixels."""
    shortcut: Tensor
    """What is added to the first convolution's normalized outputs."""
    weight: Tensor
    """[m, convolutions, k, c, 3, 3] in float32."""
    gamma: Tensor
    """[m, convolutions, k]."""
    beta: Tensor


class Found(NamedTuple):
    """Its results, or those of one convolution, without that axis."""

    y: Tensor
    """Outputs of convolutions [convolutions, m, n, h, w, k]."""
    z: Tensor
    """Those after norm, addition and ReLU."""
    mean: Tensor
    """[m, convolutions, k]."""
    rstd: Tensor

    @classmethod
    def of(cls, given: Given) -> "Found":
        """Room for them, full of what is no number."""
        y, z = given.x.new_full((2, CONVS, *given.x.shape), torch.nan)
        mean, rstd = given.gamma.new_full((2, *given.gamma.shape), torch.nan)
        return cls(y, z, mean, rstd)


def some(workers: int, device: torch.device) -> Given:
    """Random inputs, as they are in a network: behind a ReLU, the shortcut behind a norm."""
    shape = workers, IMAGES, SIDE, SIDE, CHANNELS
    x, shortcut = torch.randn(shape, device=device).relu(), torch.randn(shape, device=device)
    weight = torch.randn(workers, CONVS, CHANNELS, CHANNELS, 3, 3, device=device)
    weight *= (2 / (9 * CHANNELS)) ** 0.5
    gamma = 1 + 0.2 * torch.randn(workers, CONVS, CHANNELS, device=device)
    beta = 0.2 * torch.randn(workers, CONVS, CHANNELS, device=device)
    return Given(x.bfloat16(), shortcut.bfloat16(), weight, gamma, beta)


def pack(weight: Tensor) -> Tensor:
    """The weights as products read them: [m, convolutions, taps, c / 8, k, 8] in bf16."""
    tiles = weight.reshape(*weight.shape[:3], CHANNELS // 8, 8, 9)
    return tiles.permute(0, 1, 5, 3, 2, 4).bfloat16().contiguous()


def source(variant: str, without: Sequence[str] = ()) -> str:
    """All of the kernel's text."""
    package, here = resources.files(convolution) / "cuda", Path(__file__).parent
    texts = {name: (package / f"{name}.cu").read_text() for name in OF_PACKAGE}
    texts["add_product"] = add_product(SIDE * SIDE * IMAGES // BLOCKS // GROUPS)
    texts |= {name: (here / f"{name}.cu").read_text() for name in OWN}
    sizes = {"CONVS": CONVS, "BLOCKS": BLOCKS, "GROUPS": GROUPS, "DEPTH": DEPTH}
    given = (sizes | VARIANTS[variant]).items()
    constants = "".join(f"#define {name} {value}\n" for name, value in given)
    return constants + "".join(text for name, text in texts.items() if name not in without)


def compiled(variant: str) -> Any:
    """The kernel."""
    from partavg.kernels.binaries import kernel

    found = kernel(source(variant), "stage")
    found.set_shared_memory_config(MEMORY)
    return found


def start(kernel: Any, given: Given, packed: Tensor, found: Found) -> None:
    """Start it, a cluster for each worker."""
    tensors = [given.x, given.shortcut, packed, given.gamma, given.beta, *found]
    kernel((len(given.x) * BLOCKS, 1, 1), (128 * GROUPS, 1, 1), tensors, MEMORY)


class Engine:
    """The same by the kernels that the fused engine has for it, as it calls them."""

    def __init__(self, given: Given) -> None:
        from partavg.engines.fused.convolution import few_channels_cuda
        from partavg.engines.fused.norm import batch_norm

        self.given, self.few_channels, self.batch_norm = given, few_channels_cuda, batch_norm
        self.own = Tiling(*(CHANNELS, CHANNELS, CHANNELS, CHANNELS), SIDE, SIDE, TAPS=9, STRIDE=1)
        weights = given.weight.unbind(1)
        self.packed = [few_channels_cuda.pack_weights(one, self.own)[0] for one in weights]

    def convolve(self, z: Tensor, conv: int) -> tuple[Tensor, Tensor, int]:
        """Outputs; partial sums of their statistics, and of how many pixels each is."""
        return self.few_channels.convolve(z, self.packed[conv], self.own)

    def normalize(self, conv: int, other: Tensor, y: Tensor, *sums: Any) -> tuple[Tensor, ...]:
        """The next one's inputs, the means and deviations."""
        statistics = self.batch_norm.Statistics(*sums)
        z, settings = torch.empty_like(y), self.batch_norm.NormSettings(None, EPS, 0.0, relu=True)
        affine = self.given.gamma[:, conv], self.given.beta[:, conv]
        added = other if conv % 2 == 0 else None
        return z, *self.batch_norm.normalize(y, statistics, *affine, added, settings, z)

    def __call__(self) -> list[tuple[Tensor, ...]]:
        """What `Found` has, of each convolution."""
        z, kept, all_found = self.given.x, self.given.shortcut, []
        for conv in range(CONVS):
            outputs = self.convolve(z, conv)
            z, *measured = self.normalize(conv, kept, *outputs)
            kept = z if conv % 2 == 0 else kept
            all_found.append((outputs[0], z, *measured))
        return all_found

    def found(self) -> Found:
        """The same as ours lies."""
        y, z, mean, rstd = zip(*self(), strict=True)
        return Found(torch.stack(y), torch.stack(z), torch.stack(mean, 1), torch.stack(rstd, 1))

    def convolutions(self) -> list[tuple[Tensor, Tensor, int]]:
        """Nothing else, of the same inputs."""
        return [self.convolve(self.given.x, conv) for conv in range(CONVS)]

    def norms(self, outputs: list[tuple[Tensor, Tensor, int]]) -> list[tuple[Tensor, ...]]:
        """Nothing else."""
        return [self.normalize(conv, self.given.shortcut, *one) for conv, one in enumerate(outputs)]


def exact(given: Given, conv: int, x: Tensor, other: Tensor) -> Found:
    """A convolution and what follows it, in float64, from its inputs and what is added."""
    kernel = given.weight[:, conv].bfloat16().double().flatten(2)[:, None]  # [m, 1, k, c * taps]
    images = x.double().flatten(0, 1).movedim(-1, 1)
    patches = F.unfold(images, 3, padding=1)  # [m * n, c * taps, h * w]
    y = (kernel @ patches.reshape(*x.shape[:2], *patches.shape[1:])).mT.reshape(x.shape)
    mean, var = y.mean((1, 2, 3)), y.var((1, 2, 3), correction=0)
    rstd = (var + EPS).rsqrt()
    factor = rstd * given.gamma[:, conv].double()
    shift = given.beta[:, conv].double() - mean * factor
    z = y * factor[:, None, None, None] + shift[:, None, None, None]
    return Found(y, (z + other.double() if conv % 2 == 0 else z).relu(), mean, rstd)


def far(ours: Tensor, theirs: Tensor) -> float:
    """Largest relative distance of a worker's [m, ...]; infinite where there is no number."""
    ours, theirs = ours.double().flatten(1), theirs.double().flatten(1)
    found = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
    return float(found.nan_to_num(torch.inf).max())


def errors(given: Given, found: Found) -> list[list[float]]:
    """Of each convolution how far all of `Found` is from float64 on the inputs that it had."""
    x, other, rows = given.x, given.shortcut, []
    for conv in range(CONVS):
        own = found.y[conv], found.z[conv], found.mean[:, conv], found.rstd[:, conv]
        rows.append([far(*pair) for pair in zip(own, exact(given, conv, x, other), strict=True)])
        x, other = own[1], own[1] if conv % 2 == 0 else other
    return rows


def wrong(rows: list[list[float]]) -> bool:
    """Whether pixels are further than by the rounding of bf16, or statistics."""
    return any(max(row[:2]) > 4e-3 or max(row[2:]) > 1e-4 for row in rows)


def check(kernel: Any, given: Given) -> bool:
    """Whether the numbers are right, and the same a second time; prints the engine's, too."""
    packed, found, again = pack(given.weight), Found.of(given), Found.of(given)
    start(kernel, given, packed, found)
    start(kernel, given, packed, again)
    same = all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    print(f"The same bits a second time: {'yes' if same else 'NO'}")
    own, theirs = errors(given, found), Engine(given).found()
    pairs = zip(found.y, theirs.y, found.z, theirs.z, strict=True)
    apart = [[far(y, their_y), far(z, their_z)] for y, their_y, z, their_z in pairs]
    tables = {
        "Ours from float64: y, z, means, deviations": own,
        "The engine's": errors(given, theirs),
        "Ours from the engine's, with all before: y, z": apart,
    }
    for title, rows in tables.items():
        print(title)
        for conv, row in enumerate(rows):
            print(f"  {conv}: " + ", ".join(f"{value:.1e}" for value in row), flush=True)
    return same and not wrong(own)


def measure(title: str, size: int, calls: Sequence[Callable[[], object]], rounds: int) -> None:
    """A row: time of a call, all in a CUDA graph, that reads and writes so many bytes."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = [time / len(calls) for time in steady(graph.replay, 3 + rounds)[3:]]
    ms = median(times)
    spread = f"{ms:.3f} ({min(times):.3f} to {max(times):.3f})"
    print(f"| {title} | {spread} | {1e-6 * size:.0f} | {1e-9 * size / ms:.2f} |", flush=True)


def measure_all(kernels: dict[str, Any], sets: list[Given], rounds: int) -> None:
    """Print the table."""
    pixels, weights = 2 * sets[0].x.numel(), 2 * sets[0].weight.numel()  # bytes
    print(f"{9e-9 * CHANNELS * CONVS * pixels:.0f} GFLOP. Medians of {rounds}, least to most\n")
    print("| | ms | MB | TB/s |\n|---|---|---|---|")
    one, other = torch.zeros(2, 2**30, dtype=torch.uint8, device="cuda")
    measure("a large copy", 2 * one.numel(), [lambda: other.copy_(one)], rounds)
    engines = [Engine(given) for given in sets]
    convs, norms = 2 * CONVS * pixels + weights, (2 * CONVS + 3) * pixels
    measure("the engine's kernels", convs + norms, engines, rounds)
    measure("their convolutions alone", convs, [each.convolutions for each in engines], rounds)
    prepared = [partial(each.norms, each.convolutions()) for each in engines]
    measure("their norms alone", norms, prepared, rounds)
    packed, room = [pack(given.weight) for given in sets], Found.of(sets[0])
    for title, kernel in kernels.items():
        written = 2 * CONVS if VARIANTS[title]["WRITE"] else 1
        calls = [partial(start, kernel, *pair, room) for pair in zip(sets, packed, strict=True)]
        measure(title, (2 + written) * pixels + weights, calls, rounds)


def main(words: Sequence[str] | None = None) -> None:
    """Check, and time."""
    parser = argparse.ArgumentParser(description="A stage in clusters beside the engine's kernels.")
    parser.add_argument("--check", action="store_true", help="check the numbers, and time nothing")
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args(words)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("This needs a Hopper GPU.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", arguments, flush=True)
    torch.manual_seed(0)
    sets = [some(arguments.workers, torch.device("cuda")) for _ in range(SETS)]
    kernels = {variant: compiled(variant) for variant in VARIANTS}
    right = check(kernels[OURS], sets[0])
    if not arguments.check:
        measure_all(kernels, sets, arguments.rounds)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
