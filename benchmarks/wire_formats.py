"""Rounded messages: the error of each format, and of others that were tried, and how fast it is.

    python benchmarks/wire_formats.py

Errors are ‖x − rounded(x)‖ / ‖x‖ of a million numbers: Gaussian, Laplacian, Student's t with three
degrees of freedom, Gaussian whose rows and columns differ in size as those of weights do, and what
eight steps of AdamW change in a small network. Speeds are gigabytes of float32 per second on one
thread, the best of several.
"""

import platform
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.wire_formats import BLOCK, WIRE_FORMATS, Codec, Int4

SIZE = 1 << 20

Rounding = Callable[[Tensor], Tensor]


def rounded(numbers: Tensor, codec: Codec) -> Tensor:
    """What comes out of a message."""
    return codec.unpack(codec.pack(numbers[None]))[0]


def powers_of_two(numbers: Tensor, group: int) -> Tensor:
    """E3M0: a sign and seven powers of two below the largest of a group, or 0."""
    groups = numbers.view(-1, group)
    scales = groups.abs().amax(1, keepdim=True).bfloat16().float()
    sizes = (groups / scales).abs()
    exponents = (-sizes.log2() - 0.415).ceil().clamp(min=0)  # 0.415: half way between two powers
    powers = torch.where(exponents <= 6, 2**-exponents, 0.0)
    powers = torch.where((exponents > 6) & (sizes >= 2**-7), 2.0**-6, powers)
    return (powers * groups.sign() * scales).flatten()


def levels(numbers: Tensor, group: int) -> Tensor:
    """As `Int4`, with groups of another size."""
    codec = Int4()
    codec.group = group
    return rounded(numbers, codec)


def adamw_steps() -> Tensor:
    """How eight steps of AdamW change a small network that has been trained a little."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(48):
        if step == 40:
            before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
        x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x), y))
        optimizer.step()
    change = nn.utils.parameters_to_vector(net.parameters()).detach() - before
    return change[:SIZE]


def samples() -> dict[str, Tensor]:
    """The numbers that are rounded."""
    torch.manual_seed(0)
    sizes = torch.randn(1024, 1).exp() * (0.5 * torch.randn(1, 1024)).exp()
    return {
        "Gaussian": torch.randn(SIZE),
        "Laplacian": torch.distributions.Laplace(0.0, 1.0).sample((SIZE,)),
        "Student t": torch.distributions.StudentT(3.0).sample((SIZE,)),
        "unequal rows": (torch.randn(1024, 1024) * sizes).flatten(),
        "AdamW": adamw_steps(),
    }


def errors(data: dict[str, Tensor]) -> None:
    """A line per format."""
    known: dict[str, tuple[float, Rounding]] = {}
    for name, wire in WIRE_FORMATS.items():
        if codec := wire.codec:
            known[name] = wire.bytes_per_number, partial(rounded, codec=codec)
    for group in (16, 32, 64, 128, BLOCK):
        known[f"16 levels, groups of {group}"] = 0.5 + 2 / group, partial(levels, group=group)
        known[f"E3M0, groups of {group}"] = 0.5 + 2 / group, partial(powers_of_two, group=group)
    print(f"\n| format | bytes a number | {' | '.join(data)} |\n{'|---' * (2 + len(data))}|")
    for name, (size, rounding) in known.items():
        found = [float((x - rounding(x)).norm() / x.norm()) for x in data.values()]
        print(f"| {name} | {size:.4f} | {' | '.join(f'{error:.4f}' for error in found)} |")


def speeds() -> None:
    """A line per format."""
    torch.set_num_threads(1)
    rows = torch.randn(4, SIZE)
    print("\n| format | GB/s packed | GB/s unpacked |\n|---|---|---|")
    for name, wire in WIRE_FORMATS.items():
        if codec := wire.codec:
            packed = codec.pack(rows)
            took = best(partial(codec.pack, rows)), best(partial(codec.unpack, packed))
            print(f"| {name} | {' | '.join(f'{rows.nbytes / t / 1e9:.1f}' for t in took)} |")


def best(function: Callable[[], object], repeats: int = 9) -> float:
    """Seconds that a function takes when nothing comes in between."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        function()
        times.append(perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    print(f"{platform.platform()}, torch {torch.__version__}")
    errors(samples())
    speeds()
