"""What only a GPU can show of the fused engine: that it computes what the loop computes.

    python benchmarks/gpu_check.py

float32 against float64: the loop's own error stands beside ours, both without tf32. Then bf16, and
that the same seed gives the same bits. Exit code 1 if a check fails.
"""

import copy
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from partavg.core.loop import Batch, Engine
from partavg.engines.fused import Fused
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.models import MODELS

GPU = torch.device("cuda", 0)
LIMIT = 1e-5
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "cnn": ((1, 28, 28), {}),
    "logistic": ((20,), {}),
    "lstm": ((30,), {"dropout": 0.3}),
    "mlp": ((20,), {"batch_norm": True, "dropout": 0.3}),
    "resnet20": ((3, 32, 32), {}),
    "vgg11": ((1, 28, 28), {}),
    "wrn16_8": ((3, 32, 32), {}),
}


def problem(
    name: str, dtype: torch.dtype, workers: int, count: int
) -> tuple[RowModel, Tensor, Tensor, Batch]:
    """A model, rows a little apart, a batch for each: the same numbers in any dtype."""
    shape, options = CASES[name]
    torch.manual_seed(0)
    model = RowModel(MODELS[name](shape, 10, **options).to(dtype), F.cross_entropy, GPU)
    params, buffers = model.start()
    noise = 0.01 * torch.randn(workers, len(params), dtype=torch.float64)
    inputs = torch.randn(workers, count, *shape)
    words = torch.randint(0, 10_000, (workers, count, *shape))
    batch = Batch(
        (words if name == "lstm" else inputs.to(dtype)).to(GPU),
        torch.randint(0, 10, (workers, count)).to(GPU),
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
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-30))


def check(name: str) -> bool:
    """Compare in float32, in bf16 and with itself."""
    exact = problem(name, torch.float64, 3, 8)
    truth = run(Looped(exact[0]), *exact[1:], 3)
    case = problem(name, torch.float32, 3, 8)
    loop = run(Looped(case[0]), *case[1:], 3)
    ours = run(Fused(case[0], 99, "fp32"), *case[1:], 3)
    chunked = run(Fused(case[0], 2, "fp32"), *case[1:], 3)
    errors = [far(a, b) for a, b in zip(ours, truth, strict=True)]
    theirs = [far(a, b) for a, b in zip(loop, truth, strict=True)]
    between = [far(a, b) for a, b in zip(ours, loop, strict=True)]
    parts = [far(a, b) for a, b in zip(chunked, ours, strict=True)]
    weights = far(
        train(Fused(case[0], 99, "fp32"), *case[1:], 50), train(Looped(case[0]), *case[1:], 50)
    )
    low = run(Fused(case[0], 99, "bf16"), *case[1:], 3)
    again = run(Fused(case[0], 99, "bf16", deterministic=True), *case[1:], 3)
    once = run(Fused(copy.deepcopy(case[0]), 99, "bf16", deterministic=True), *case[1:], 3)
    same = all(torch.equal(a, b) for a, b in zip(again, once, strict=True))
    # Where the loop's own rounding is larger than the limit, ours may be as large.
    good = all(e <= max(LIMIT, 2 * t) for e, t in zip(errors, theirs, strict=True))
    good = good and weights <= 10 * LIMIT and max(parts) <= max(LIMIT, 2 * max(theirs)) and same
    text = [" ".join(f"{e:.0e}" for e in some) for some in (between, errors, theirs)]
    print(
        f"{'ok  ' if good else 'FAIL'} {name:9} fused-loop {text[0]} | fused-float64 {text[1]} | "
        f"loop-float64 {text[2]} | 50 steps {weights:.0e} | bf16 loss {far(low[0], truth[0]):.0e} "
        f"gradient {far(low[1], truth[1]):.0e} | repeats {same}",
        flush=True,
    )
    return good


def main() -> None:
    """Check every model; the wide ones are one family."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    print(torch.cuda.get_device_name(), torch.__version__)
    print("relative errors of losses, gradients, buffers")
    names = sys.argv[1:] or list(CASES)
    failed = [name for name in names if not check(name)]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
