"""A stage of ResNet-20 that does not leave the processors, beside the engine's kernels for it.

    python benchmarks/stage_in_clusters.py [--products warps] [--sums barriers] [--check]

A prototype, for Hopper: five convolutions of 64 channels, 8 x 8 pixels, with their BatchNorms,
additions and ReLUs, forward, of 128 workers with 32 images. Four blocks, a thread-block cluster,
hold a worker's images in shared memory and its sums in registers. It writes what the way back of
the engine needs: outputs before and after each norm, means and deviations.

First it is compared with float64 and with the engine's kernels, then both are timed, and variants
that tell where its time goes. Exit code 1 if its numbers are wrong. Where it fails, the program
runs again with simpler ways to multiply and to add up over a cluster, both and each alone.
"""

import argparse
import ctypes
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused import convolution
from partavg.engines.fused.convolution.cuda_sources import add_product
from partavg.engines.fused.convolution.tiling import Tiling

CONVS, CHANNELS, IMAGES, SIDE = 5, 64, 32, 8
EPS = 1e-5
BLOCKS = 4
"""Of a cluster."""
DEPTH = 16
"""Taps in shared memory."""
OF_GPU = "instructions", "warpgroups", "add_product", "stage_in_clusters_instructions"
"""Parts of the source for which tests have words of their own."""
LIMIT = 4e-3
"""Of a result in bf16, from exact inputs."""
SETS = 3
"""Inputs in turn, so that the L2 has none of them."""
PRODUCTS = {"warpgroups": 1, "warps": 2}
SUMS = {"announced": 1, "barriers": 2}
SIMPLER = (
    ("--products=warps", "--sums=barriers"),
    ("--sums=barriers", "--check"),
    ("--products=warps", "--check"),
)
"""Where all of it fails; so it is seen what does."""


class Cut(NamedTuple):
    """A variant of the kernel: its constants."""

    GROUPS: int = 4
    """Of four warps, in a block."""
    PRODUCTS: int = 1
    """By warp groups; 2: by warps; 0: none."""
    WRITE: int = 3
    """Outputs before norms (1) and after norms (2); those of the stage always."""
    SUMS: int = 1
    """Told to the cluster by announced writes; 2: between barriers of the cluster; 0: not."""
    REST: int = 1
    """Whether there is anything but products."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * self.GROUPS

    @property
    def memory(self) -> int:
        """Bytes of shared memory: pixels with their rims, weights, sums, barriers."""
        pixels = CHANNELS * 2 * ((SIDE + 2) * (SIDE + 1) * (IMAGES // BLOCKS) + 1)
        sums = 8 * CHANNELS * (self.GROUPS + 2 * BLOCKS + 1)
        return pixels + DEPTH * CHANNELS * CHANNELS * 2 + sums + 8 * (DEPTH + 2)


VARIANTS = (
    ("two warp groups, not four", Cut(GROUPS=2)),
    ("sums between barriers of the cluster", Cut(SUMS=2)),
    ("each block with statistics of its own", Cut(SUMS=0)),
    ("before norms nothing written", Cut(WRITE=2)),
    ("after norms nothing written but the last", Cut(WRITE=1)),
    ("nothing written but the last", Cut(WRITE=0)),
    ("no products", Cut(PRODUCTS=0)),
    ("nothing but products", Cut(WRITE=0, REST=0)),
    ("nothing but products, two warp groups", Cut(GROUPS=2, WRITE=0, REST=0)),
    ("products by warps (mma.sync)", Cut(PRODUCTS=2)),
)


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
    """Its results."""

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


def source(cut: Cut, without: Sequence[str] = ()) -> str:
    """All of the kernel's text."""
    package, here = resources.files(convolution) / "cuda", Path(__file__).parent
    own = "stage_in_clusters_instructions", "stage_in_clusters"
    parts = {
        **{part: package / f"{part}.cu" for part in ("instructions", "halves", "warpgroups")},
        **{part: here / f"{part}.cu" for part in own},
    }
    texts = [place.read_text() for part, place in parts.items() if part not in without]
    if "add_product" not in without:
        texts.insert(-1, add_product(SIDE * SIDE * IMAGES // BLOCKS // cut.GROUPS))
    constants = {**cut._asdict(), "CONVS": CONVS}
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + "".join(
        texts
    )


def compiled(cut: Cut) -> Any:
    """The kernel."""
    from partavg.kernels.binaries import kernel

    torch.cuda.synchronize()  # so that a thread of its own knows the device
    found = kernel(source(cut), "stage")
    found.set_shared_memory_config(cut.memory)
    return found


def attempt(cut: Cut) -> Any:
    """The kernel, or why there is none."""
    try:
        return compiled(cut)
    except Exception as reason:
        return reason


def start(kernel: Any, cut: Cut, clusters: int, given: Given, packed: Tensor, found: Found) -> None:
    """Start it with so many clusters, each for some of the workers."""
    workers = len(given.x)
    tensors = [given.x, given.shortcut, packed, given.gamma, given.beta, *found]
    grid = min(clusters, workers) * BLOCKS, 1, 1
    kernel(grid, (cut.threads, 1, 1), [*tensors, workers], cut.memory)


Outputs = tuple[Tensor, Tensor, int]
"""Of a convolution; partial sums of their statistics, and of how many pixels each is."""


class Engine:
    """The same by the kernels that the fused engine has for it, as it calls them."""

    def __init__(self, given: Given) -> None:
        from partavg.engines.fused.convolution import few_channels_cuda
        from partavg.engines.fused.norm import batch_norm

        self.given, self.few_channels, self.batch_norm = given, few_channels_cuda, batch_norm
        self.own = Tiling(*(CHANNELS, CHANNELS, CHANNELS, CHANNELS), SIDE, SIDE, TAPS=9, STRIDE=1)
        weights = given.weight.unbind(1)
        self.packed = [few_channels_cuda.pack_weights(one, self.own)[0] for one in weights]

    def convolve(self, z: Tensor, conv: int) -> Outputs:
        """A convolution of its inputs."""
        return self.few_channels.convolve(z, self.packed[conv], self.own)

    def normalize(self, of: Outputs, conv: int, other: Tensor | None) -> tuple[Tensor, ...]:
        """The next one's inputs, the means and deviations."""
        y, statistics = of[0], self.batch_norm.Statistics(*of[1:])
        z, settings = torch.empty_like(y), self.batch_norm.NormSettings(None, EPS, 0.0, relu=True)
        affine = self.given.gamma[:, conv], self.given.beta[:, conv]
        return z, *self.batch_norm.normalize(y, statistics, *affine, other, settings, z)

    def __call__(self) -> list[tuple[Tensor, ...]]:
        """What `Found` has, of each convolution."""
        z, kept, all_found = self.given.x, self.given.shortcut, []
        for conv in range(CONVS):
            outputs = self.convolve(z, conv)
            z, *measured = self.normalize(outputs, conv, kept if conv % 2 == 0 else None)
            kept = z if conv % 2 == 0 else kept
            all_found.append((outputs[0], z, *measured))
        return all_found

    def found(self) -> Found:
        """The same as ours lies."""
        y, z, mean, rstd = zip(*self(), strict=True)
        return Found(torch.stack(y), torch.stack(z), torch.stack(mean, 1), torch.stack(rstd, 1))

    def convolutions(self) -> list[Outputs]:
        """Nothing else, of the same inputs."""
        return [self.convolve(self.given.x, conv) for conv in range(CONVS)]

    def norms(self, outputs: list[Outputs]) -> list[tuple[Tensor, ...]]:
        """Nothing else."""
        other = self.given.shortcut
        return [
            self.normalize(one, conv, other if conv % 2 == 0 else None)
            for conv, one in enumerate(outputs)
        ]


class Exact(NamedTuple):
    """A convolution and what follows it, in float64, of one worker."""

    y: Tensor
    z: Tensor
    mean: Tensor
    rstd: Tensor


def exact(given: Given, worker: int, conv: int, x: Tensor, other: Tensor) -> Exact:
    """From its inputs and what is added [n, h, w, c]."""
    kernel = given.weight[worker, conv].bfloat16().double().flatten(1)
    patches = F.unfold(x.double().movedim(-1, 1), 3, padding=1)  # [n, c * taps, h * w]
    y = (kernel @ patches).movedim(1, -1).reshape(x.shape)
    mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2), correction=0)
    rstd = (var + EPS).rsqrt()
    z = (y - mean) * rstd * given.gamma[worker, conv].double() + given.beta[worker, conv].double()
    return Exact(y, (z + other.double() if conv % 2 == 0 else z).relu(), mean, rstd)


def far(ours: Tensor, theirs: Tensor, unit: Tensor | None = None) -> float:
    """Distance relative to theirs, or to another unit; infinite where ours are no numbers."""
    ours, theirs = ours.double(), theirs.double()
    size = (theirs if unit is None else unit).norm().clamp(min=1e-30)
    return float(((ours - theirs).norm() / size).nan_to_num(torch.inf))


def errors(given: Given, found: Found, workers: Sequence[int]) -> list[list[float]]:
    """For each convolution, the largest of all workers.

    Those of y, z, means and deviations from float64 on the same inputs, the kernel's own; and those
    of y and z from the stage in float64 from its beginning.
    """
    worst = [[0.0] * 6 for _ in range(CONVS)]
    for worker in workers:
        x, other = given.x[worker], given.shortcut[worker]
        true_x, true_other = x.double(), other.double()
        for conv in range(CONVS):
            y, z = found.y[conv, worker], found.z[conv, worker]
            mean, rstd = found.mean[worker, conv], found.rstd[worker, conv]
            step = exact(given, worker, conv, x, other)
            true = exact(given, worker, conv, true_x, true_other)
            row = [far(y, step.y), far(z, step.z), far(mean, step.mean, 1 / step.rstd)]
            row += [far(rstd, step.rstd), far(y, true.y), far(z, true.z)]
            worst[conv] = [max(pair) for pair in zip(worst[conv], row, strict=True)]
            x, true_x = z, true.z
            if conv % 2 == 0:
                other, true_other = z, true.z
    return worst


def wrong(worst: list[list[float]]) -> bool:
    """Whether a step is further from float64 than by its rounding."""
    return any(max(row[:2]) > LIMIT or max(row[2:4]) > 1e-4 for row in worst)


def print_errors(title: str, worst: list[list[float]]) -> None:
    """A line for each convolution."""
    print(f"{title}: of a step y, z, mean, 1 / deviation; of all steps so far y, z")
    for conv, row in enumerate(worst):
        print(f"  {conv}: " + ", ".join(f"{value:.1e}" for value in row), flush=True)


def print_where(given: Given, found: Found) -> None:
    """Where the first convolution of the first worker is wrong, which tells what reads what."""
    true = exact(given, 0, 0, given.x[0], given.shortcut[0])
    for title, ours, theirs in (("y", found.y[0, 0], true.y), ("z", found.z[0, 0], true.z)):
        shape = BLOCKS, IMAGES // BLOCKS, SIDE, SIDE, CHANNELS // 8, 8
        ours, theirs = ours.double().reshape(shape), theirs.reshape(shape)
        print(f"{title} of the first convolution: {int(ours.isnan().sum())} not written")
        for axis, name in enumerate(("block", "image", "row", "column", "eight", "of eight")):
            parts = zip(ours.unbind(axis), theirs.unbind(axis), strict=True)
            print(f"  by {name}: " + " ".join(f"{far(*pair):.1e}" for pair in parts), flush=True)


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest relative distance of any worker's [m, …]."""
    ours, theirs = ours.flatten(1).float(), theirs.flatten(1).float()
    found = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
    return float(found.nan_to_num(torch.inf).max())


def check(kernel: Any, cut: Cut, clusters: int, given: Given) -> tuple[bool, Found]:
    """Whether the numbers are right, and the same a second time, in other clusters."""
    workers = len(given.x)
    packed, found, again = pack(given.weight), Found.of(given), Found.of(given)
    start(kernel, cut, clusters, given, packed, found)
    torch.cuda.synchronize()
    worst = errors(given, found, sorted({0, workers // 2, workers - 1}))
    print_errors("Ours from float64", worst)
    bad = wrong(worst) or not all(bool(tensor.isfinite().all()) for tensor in found)
    if bad:
        print_where(given, found)
    start(kernel, cut, workers, given, packed, again)
    torch.cuda.synchronize()
    same = all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    print(f"The same bits with a cluster for each worker: {'yes' if same else 'NO'}", flush=True)
    return not bad and same, found


def milliseconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of a call, all of them one after another in a CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    times, event = [], partial(torch.cuda.Event, enable_timing=True)
    for _ in range(rounds):
        began, ended = event(), event()
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / len(calls))
    return times


class _Launch(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("memory", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class _Attribute(ctypes.Structure):
    """Its CUlaunchAttribute, of which number 4 is the size of a cluster."""

    _fields_ = (("number", ctypes.c_int), ("gap", ctypes.c_int), ("value", ctypes.c_uint * 16))


def fitting(kernel: Any, cut: Cut, otherwise: int = 32) -> int:
    """How many clusters are on the GPU at a time, if the driver says so."""
    attribute = _Attribute(4, 0, (ctypes.c_uint * 16)(BLOCKS, 1, 1))
    grid, block = (ctypes.c_uint * 3)(BLOCKS * 32, 1, 1), (ctypes.c_uint * 3)(cut.threads, 1, 1)
    launch = _Launch(grid, block, cut.memory, None, ctypes.addressof(attribute), 1)
    count = ctypes.c_int(0)
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
        failed = ask(ctypes.byref(count), kernel.func, ctypes.byref(launch))
    except (OSError, AttributeError) as reason:
        failed = reason
    if failed or count.value < 1:
        print(f"The driver does not say how many clusters fit ({failed}): {otherwise} are taken")
        return otherwise
    return count.value


def of_kernel(kernel: Any, number: int) -> int:
    """The driver's attribute of a kernel: 4, a thread's registers; 3, its local memory."""
    value = ctypes.c_int(-1)
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuFuncGetAttribute
        ask(ctypes.byref(value), number, kernel.func)
    except (OSError, AttributeError):
        pass
    return value.value


def copy_rate() -> float:
    """Bytes a second of a large copy, read and written."""
    one = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    other = torch.zeros_like(one)
    return 2 * 2**30 / (1e-3 * median(milliseconds([lambda: other.copy_(one)], 10)))


def moved(cut: Cut, pixels: int, weights: int) -> int:
    """Bytes that a variant reads and writes: pixels of all workers, and their weights, in bytes."""
    before, after = (CONVS if cut.WRITE & 1 else 0), (CONVS if cut.WRITE & 2 else 1)
    return (2 + after + before) * pixels + weights


def line(title: str, times: list[float], size: int, rate: float, pixels: int) -> str:
    """Of the table, without its end."""
    ms, work = median(times), pixels * CONVS * 9 * CHANNELS
    share = size / rate / (1e-3 * ms)
    return (
        f"| {title} | {ms:.4f} ({min(times):.4f} to {max(times):.4f}) "
        f"| {1e-9 * work / ms:.0f} | {1e-6 * size:.0f} | {100 * share:.0f} %"
    )


def of_engine(engines: Sequence[Engine], rounds: int, rate: float) -> None:
    """The engine's rows: the stage, and its convolutions and norms alone."""
    pixels, weights = engines[0].given.x.numel() * 2, engines[0].given.weight.numel() * 2
    convs, norms = 2 * CONVS * pixels + weights, (2 * CONVS + 3) * pixels
    calls: list[tuple[str, int, list[Callable[[], object]]]] = [
        ("the engine's kernels", convs + norms, [*engines]),
        ("their convolutions alone", convs, [each.convolutions for each in engines]),
        (
            "their norms alone",
            norms,
            [partial(each.norms, each.convolutions()) for each in engines],
        ),
    ]
    for title, size, each in calls:
        times = milliseconds(each, rounds)
        print(line(title, times, size, rate, pixels) + " | | |", flush=True)


def measure(arguments: argparse.Namespace) -> bool:
    """Check and time; whether the numbers are right."""
    rounds, workers = arguments.rounds, arguments.workers
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {workers} workers")
    own = Cut(PRODUCTS=PRODUCTS[arguments.products], SUMS=SUMS[arguments.sums])
    variants = [] if arguments.check else [*VARIANTS]
    if own != Cut():  # the others may end the program: what writes nothing, and no products
        simpler = [(title, cut._replace(SUMS=own.SUMS)) for title, cut in variants[5:8]]
        variants = [(title, cut._replace(PRODUCTS=own.PRODUCTS)) for title, cut in simpler[::2]]
        variants += simpler[1:2]
    cuts = [own, *(cut for _, cut in variants)]
    with ThreadPoolExecutor(len(cuts)) as pool:
        kernels = dict(zip(cuts, pool.map(attempt, cuts), strict=True))
    if isinstance(kernels[own], Exception):
        raise kernels[own]
    fit = fitting(kernels[own], own)
    print(f"{fit} clusters fit; {len(kernels)} kernels are compiled", flush=True)

    torch.manual_seed(0)
    sets = [some(workers, torch.device("cuda")) for _ in range(SETS)]
    right, found = check(kernels[own], own, fit, sets[0])
    engines = [Engine(given) for given in sets]
    theirs = engines[0].found()
    print_errors("The engine's kernels from float64", errors(sets[0], theirs, [0, workers - 1]))
    print("Ours from the engine's, any worker: y, z")
    for conv in range(CONVS):
        y, z = apart(found.y[conv], theirs.y[conv]), apart(found.z[conv], theirs.z[conv])
        print(f"  {conv}: {y:.1e}, {z:.1e}", flush=True)
    del theirs
    if arguments.check:
        return right

    rate = copy_rate()
    print(f"A large copy: {1e-12 * rate:.2f} TB/s. Medians of {rounds}, smallest to largest\n")
    print("| | ms | TFLOP/s | MB | share of a copy | registers, local bytes, shared KB | far |")
    print("|---|---|---|---|---|---|---|", flush=True)
    of_engine(engines, rounds, rate)
    del engines
    pixels, packed = sets[0].x.numel() * 2, [pack(given.weight) for given in sets]
    rows = [("ours", own, fit), ("ours, a cluster for each worker", own, workers)]
    rows += [(title, cut, fit) for title, cut in variants]
    for title, cut, clusters in rows:
        kernel = kernels[cut]
        if isinstance(kernel, Exception):
            print(f"| {title} | not compiled: {str(kernel)[:300]}", flush=True)
            continue
        room = Found.of(sets[0])
        calls = [  # the first set comes last: its results are what is compared
            partial(start, kernel, cut, clusters, sets[number], packed[number], room)
            for number in reversed(range(SETS))
        ]
        size = moved(cut, pixels, 2 * packed[0].numel())
        text = line(title, milliseconds(calls, rounds), size, rate, pixels)
        sizes = f"{of_kernel(kernel, 4)}, {of_kernel(kernel, 3)}, {cut.memory / 1024:.0f}"
        print(f"{text} | {sizes} | {apart(room.z[-1], found.z[-1]):.1e} |", flush=True)
    return right


def main(words: Sequence[str] | None = None) -> None:
    """Run it; where it fails, again in simpler ways."""
    parser = argparse.ArgumentParser(description="A stage in clusters beside the engine's kernels.")
    parser.add_argument("--products", choices=[*PRODUCTS], default="warpgroups")
    parser.add_argument("--sums", choices=[*SUMS], default="announced")
    parser.add_argument("--check", action="store_true", help="check the numbers, and time nothing")
    parser.add_argument("--once", action="store_true", help="do not try again in simpler ways")
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args(words)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("This needs a Hopper GPU.")
    try:
        right = measure(arguments)
    except Exception:  # after an error of a kernel, this process has no GPU any more
        traceback.print_exc(file=sys.stdout)
        right = False
    if not right and not arguments.once:
        sizes = f"--workers={arguments.workers}", f"--rounds={arguments.rounds}", "--once"
        for simpler in SIMPLER:
            print("\nAgain:", *simpler, flush=True)
            subprocess.run([sys.executable, __file__, *simpler, *sizes], check=False)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
