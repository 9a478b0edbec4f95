"""What only a GPU can show of the fused engine: that it computes what the loop computes.

    python benchmarks/gpu_check.py [MODEL …]

First the bf16 kernels of convolutions one by one, and GroupNorm and what transformers are made of,
in bf16 and float32 against float64 on the same numbers. Then models in float32 against float64,
without tf32: the loop's own error stands beside ours, and that of a loop whose weights are shaken
by one rounding. The same after 50 steps, where a network may have magnified both. Then that the
same seed gives the same bits. Exit code 1 if a check fails.
"""

import copy
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import gpu
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch, Engine
from partavg.engines.fused import Fused, dispatch
from partavg.engines.fused.convolution.case import Window
from partavg.engines.fused.convolution.operation import convolve
from partavg.engines.fused.norm import operation, reference
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.kernels.streams import wait_for_side_stream
from partavg.losses import next_token
from partavg.models import MODELS

GPU = torch.device("cuda", 0)
LIMIT = 1e-5
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "cnn": ((1, 28, 28), {}),
    "dropout_cnn": ((3, 32, 32), {}),
    "gpt": ((64,), {"layers": 3, "width": 64, "heads": 2, "dropout": 0.1}),
    "logistic": ((20,), {}),
    "lstm": ((30,), {"dropout": 0.3}),
    "mlp": ((20,), {"batch_norm": True, "dropout": 0.3}),
    "resnet20": ((3, 32, 32), {}),
    "resnet20_groups": ((3, 32, 32), {}),
    "vgg11": ((1, 28, 28), {}),
    "wrn16_8": ((3, 32, 32), {}),
}

CONVS = (
    *((3, 16, 32, 3, 1), (16, 16, 32, 3, 1), (32, 32, 16, 3, 1), (64, 64, 8, 3, 1)),
    *((16, 32, 32, 3, 2), (32, 64, 16, 3, 2), (16, 16, 32, 1, 1), (32, 64, 16, 1, 2)),
    *((16, 160, 32, 3, 1), (160, 320, 32, 3, 2), (256, 128, 16, 3, 1)),
    *((160, 160, 32, 3, 1), (640, 640, 8, 3, 1), (32, 64, 14, 5, 1), (256, 512, 4, 3, 1)),
)
"""Channels in and out, size, side and stride of layers of ResNet-20, WRN, the CNN and VGG."""
GROUP_NORMS = (
    *((16, 32, 8), (32, 16, 8), (64, 8, 8), (16, 32, 1), (16, 32, 16), (16, 32, 2)),
    *((160, 32, 8), (160, 32, 1), (640, 8, 8), (21, 7, 7), (12, 1, 2)),
)
"""Channels, size and groups."""


def problem(
    name: str, dtype: torch.dtype, workers: int, count: int
) -> tuple[RowModel, Tensor, Tensor, Batch]:
    """A model, rows a little apart, a batch for each: the same numbers in any dtype."""
    shape, options = CASES[name]
    loss: Any = next_token if name == "gpt" else F.cross_entropy
    torch.manual_seed(0)
    model = RowModel(gpu.BUILD[name](shape, 10, **options).to(dtype), loss, GPU)
    params, buffers = model.start()
    noise = 0.01 * torch.randn(workers, len(params), dtype=torch.float64)
    inputs = torch.randn(workers, count, *shape)
    words = torch.randint(0, {"lstm": 10_000}.get(name, 10), (workers, count, *shape))
    texts = name in ("lstm", "gpt")
    targets = words.roll(-1, 2) if name == "gpt" else torch.randint(0, 10, (workers, count))
    batch = Batch(
        (words if texts else inputs.to(dtype)).to(GPU),
        targets.to(GPU),
        torch.arange(workers, device=GPU) + 7,
    )
    return model, params + noise.float().to(GPU, dtype), buffers.repeat(workers, 1), batch


def run(engine: Engine, params: Tensor, buffers: Tensor, batch: Batch, calls: int) -> list[Tensor]:
    """Losses, gradients and buffers after some calls; the later ones replay a graph."""
    buffers = buffers.clone()
    for _ in range(calls):
        found = [
            (each.losses.clone(), list(each.pieces)) for each in engine(params, buffers, batch)
        ]
    grads = [torch.cat([grad for _, grad in pieces], 1).clone() for _, pieces in found]
    return [torch.cat([losses for losses, _ in found]), torch.cat(grads), buffers]


def train(engine: Engine, params: Tensor, buffers: Tensor, batch: Batch, steps: int) -> Tensor:
    """The weights after some steps of gradient descent."""
    params, buffers = params.clone(), buffers.clone()
    for _ in range(steps):
        for rows, _, pieces in engine(params, buffers, batch):
            for columns, grads in pieces:
                params[rows, columns] -= 0.002 * grads
    return params


def far(ours: Tensor, theirs: Tensor) -> float:
    """Relative distance."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-30))


def shaken(params: Tensor) -> Tensor:
    """Weights one rounding away: what they lead to tells how much a network magnifies rounding."""
    torch.manual_seed(1)
    return params * (1 + 1.2e-7 * torch.randn(params.shape).sign().to(params))


def errors(ours: list[Tensor], theirs: list[Tensor]) -> list[float]:
    """Of losses, gradients and buffers."""
    return [far(a, b) for a, b in zip(ours, theirs, strict=True)]


def compare(name: str, params: Tensor | None) -> tuple[bool, str]:
    """Losses, gradients and buffers in float32 against float64, from some weights on.

    Allowed is 1e-5, or three times what the loop itself is off: by its own kernels' rounding, or
    when its weights are shaken.
    """
    exact = problem(name, torch.float64, 3, 8)
    model, start, buffers, batch = problem(name, torch.float32, 3, 8)
    start = start if params is None else params
    truth = run(Looped(exact[0]), start.double(), *exact[2:], 3)
    loop = run(Looped(model), start, buffers, batch, 3)
    noise = errors(run(Looped(model), shaken(start), buffers, batch, 3), loop)
    own = errors(loop, truth)
    allowed = [max(LIMIT, 3 * max(pair)) for pair in zip(noise, own, strict=True)]
    ours, parts = (run(Fused(model, chunk, "fp32"), start, buffers, batch, 3) for chunk in (99, 2))
    found, cut = errors(ours, truth), errors(parts, truth)
    good = all(max(pair) <= most for *pair, most in zip(found, cut, allowed, strict=True))
    texts = [" ".join(f"{e:.0e}" for e in some) for some in (found, own, noise)]
    return good, "ours {} loop {} shaken {}".format(*texts)


def check(name: str) -> bool:
    """Compare in float32 at the start and after 50 steps, in bf16, and with itself."""
    model, params, buffers, batch = problem(name, torch.float32, 3, 8)
    end = train(Looped(model), params, buffers, batch, 50)
    apart = far(train(Fused(model, 99, "fp32"), params, buffers, batch, 50), end)
    drift = far(train(Looped(model), shaken(params), buffers, batch, 50), end)
    (first, start), (last, later) = compare(name, None), compare(name, end)
    low = run(Fused(model, 99, "bf16"), params, buffers, batch, 3)
    loop = run(Looped(model), params, buffers, batch, 3)
    again = run(Fused(model, 99, "bf16", deterministic=True), params, buffers, batch, 3)
    other = copy.deepcopy(model)
    once = run(Fused(other, 99, "bf16", deterministic=True), params, buffers, batch, 3)
    same = all(torch.equal(a, b) for a, b in zip(again, once, strict=True))
    good = first and last and apart <= max(LIMIT, 5 * drift) and same
    print(
        f"{'ok  ' if good else 'FAIL'} {name:9} start: {start} | 50 steps: apart {apart:.0e}, "
        f"shaken {drift:.0e} | there: {later} | bf16 loss {far(low[0], loop[0]):.0e} gradient "
        f"{far(low[1], loop[1]):.0e} | repeats {same}",
        flush=True,
    )
    return good


def convolved(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """What the engine's kernels make of x, whichever they take."""
    rim = weight.shape[3] // 2
    return convolve(x, weight, None, Window((stride, stride), (rim, rim))).y


def kernels(inputs: int, outputs: int, size: int, side: int, stride: int) -> bool:
    """A convolution in bf16, and its gradients, against float32 on the same rounded numbers."""
    torch.manual_seed(0)
    x = torch.randn(3, 32, inputs, size, size, device=GPU).bfloat16().requires_grad_()
    kernel = torch.randn(3, outputs, inputs, side, side, device=GPU) / (side * inputs**0.5)
    weight = kernel.bfloat16().float().requires_grad_()
    y = convolved(x, weight, stride)
    pairs = zip(x.float(), weight, strict=True)
    truth = torch.stack([F.conv2d(*pair, None, stride, side // 2) for pair in pairs])
    outer = torch.randn_like(truth).bfloat16()
    ours = [y, *torch.autograd.grad(y, [x, weight], outer)]
    theirs = [truth, *torch.autograd.grad(truth, [x, weight], outer.float())]
    found = errors(ours, theirs)
    good = all(error <= most for error, most in zip(found, (5e-3, 5e-3, 1e-3), strict=True))
    text = " ".join(f"{error:.0e}" for error in found)
    case = f"{inputs} to {outputs} channels, {size} x {size}, {side} x {side}, stride {stride}"
    print(f"{'ok  ' if good else 'FAIL'} {case}: output, gradients of input and weights {text}")
    return good


def normalized(channels: int, size: int, groups: int, dtype: torch.dtype, adds: bool) -> bool:
    """A GroupNorm and gradients against float64 on the same numbers; twice the same.

    With ReLU in bf16 only: a number that rounding takes past 0 is far more than float32 is off.
    """
    torch.manual_seed(0)
    shape = 3, 32, channels, size, size
    x, outer, added = torch.randn(3, *shape, device=GPU).to(dtype)
    low = dtype == torch.bfloat16
    given = [2 * x + 1, *torch.randn(2, 3, channels, device=GPU), *([added] if adds else [])]

    def run(normalize: Callable[..., Tensor], wide: bool) -> list[Tensor]:
        leaves = [(t.double() if wide else t.clone()).requires_grad_() for t in given]
        y = normalize(*leaves[:3], groups, 1e-5, leaves[3] if adds else None, low)
        grads = torch.autograd.grad(y, leaves, outer.to(y.dtype))
        wait_for_side_stream(GPU)
        return [y.detach(), *grads]

    ours, again = (run(operation.group_norm, wide=False) for _ in range(2))
    found = errors(ours, run(reference.group_norm, wide=True))
    same = all(torch.equal(*pair) for pair in zip(ours, again, strict=True))
    good = same and max(found) <= (1e-2 if low else 1e-5)
    text = " ".join(f"{error:.0e}" for error in found)
    case = f"{groups} groups of {channels} channels, {size} x {size}{', added' if adds else ''}"
    print(f"{'ok  ' if good else 'FAIL'} {case}, {dtype}: {text}; repeats {same}", flush=True)
    return good


class Own(nn.Module):
    """A user's network: blocks before whose ReLU something is added, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, 1, 1, bias=False) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(6))
        self.start = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.linear = nn.Linear(16, 10)

    def step(self, number: int, x: Tensor) -> Tensor:
        """A convolution of what a norm and ReLU make of x."""
        found: Tensor = self.convs[number](F.relu(self.norms[number](x)))
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Blocks of the kinds that the fused kernels must tell apart."""
        x = self.start(x)
        x = x + self.step(1, self.step(0, x))  # the gradient of a sum goes two ways
        x = self.step(2, self.step(2, x))  # gradients of one layer are added up
        x = self.convs[3](F.relu(self.norms[3](x) + x))  # outputs that are used twice
        x = self.step(5, self.step(4, x))
        found: Tensor = self.linear(x.mean((2, 3)))
        return found


def together(name: str, make: Callable[[], nn.Module], workers: int = 32) -> bool:
    """Gradients in bf16 by kernels that fuse layers and by one kernel for each, against float64."""

    def found(engine: Callable[[RowModel], Engine], dtype: torch.dtype) -> Tensor:
        torch.manual_seed(0)
        model = RowModel(make().to(dtype), F.cross_entropy, GPU)
        params, buffers = model.start()
        noise = 0.01 * torch.randn(workers, len(params), dtype=torch.float64)
        batch = Batch(
            torch.randn(workers, 32, 3, 32, 32).to(GPU, dtype),
            torch.randint(0, 10, (workers, 32)).to(GPU),
            torch.arange(workers, device=GPU),
        )
        rows = params + noise.float().to(GPU, dtype)
        return run(engine(model), rows, buffers.repeat(workers, 1), batch, 3)[1]

    truth = found(Looped, torch.float64)
    fused = partial(Fused, chunk=99, precision="bf16")
    ours = far(found(fused, torch.float32), truth)
    both = dispatch.both_gradients_at_once
    dispatch.both_gradients_at_once = lambda own: False
    apart = far(found(fused, torch.float32), truth)
    dispatch.both_gradients_at_once = both
    good = ours <= 1.2 * apart
    print(
        f"{'ok  ' if good else 'FAIL'} {name} in bf16: gradients off by {ours:.1e} with fused "
        f"layers, {apart:.1e} without",
        flush=True,
    )
    return good


def repeats(name: str = "resnet20", steps: int = 24) -> bool:
    """Whether two runs with the `deterministic` switch end with the same bits, and its cost."""
    ends = []
    for deterministic in (False, True, True):
        made = gpu.simulation(name, (3, 32, 32), 10, 128, 32, deterministic=deterministic)
        records = made.train(until=10**9)
        gpu.timed(partial(next, records), 1, steps - 1)
        ends.append(made.workers.params.clone())
        times = gpu.steady(partial(next, records), 20)
        print(f"{name}, deterministic {deterministic}: {median(times):.2f} ms", flush=True)
    same = torch.equal(*ends[1:])
    print(f"{steps} steps of {name} twice, deterministic: the same bits: {same}; ", end="")
    print(f"without the switch: {torch.equal(*ends[:2])}", flush=True)
    return same


def main() -> None:
    """Check every model; the wide ones are one family."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), torch.__version__)
    print("relative errors of losses, gradients, buffers")
    names = sys.argv[1:] or list(CASES)
    images = bool({"resnet20", "cnn"} & {*names})
    good = [kernels(*case) for case in CONVS if images]
    if "resnet20_groups" in names:
        good += [
            normalized(*case, dtype, adds)
            for case in GROUP_NORMS
            for dtype in (torch.bfloat16, torch.float32)
            for adds in (False, True)
        ]
    if {"gpt", "lstm"} & {*names}:
        import gpu_check_texts

        good += gpu_check_texts.checks(transformers="gpt" in names, lstms="lstm" in names)
    good += [check(name) for name in names]
    if "resnet20_groups" in names:
        good += [repeats("resnet20_groups")]
    if images:
        good += [
            repeats(),
            together("resnet20", lambda: MODELS["resnet20"]((3, 32, 32), 10)),
            together("own", Own),
        ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
