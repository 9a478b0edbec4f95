"""Of gpu_check.py what is about texts: operations, AdamW, activations computed twice."""

from collections.abc import Callable, Iterator
from importlib import import_module

import torch
from gpu_check import GPU, LIMIT, errors, far, run
from torch import Tensor, nn

from partavg.core.loop import Batch
from partavg.core.solver import Step
from partavg.engines.fused import Fused
from partavg.engines.fused.comparison import Setting
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.losses import next_token
from partavg.models import gpt
from partavg.solvers.adam import Adam

OPERATIONS = ("attention", "embedding", "head_loss", "linear", "rotary", "token_norm")
"""Of transformers; `reference.py` in their folders is what they are compared with."""


def operation(folder: str, dtype: torch.dtype) -> bool:
    """Outputs and gradients of an operation against its reference in float64."""
    benchmark = import_module(f"partavg.engines.fused.{folder}.benchmark")
    torch.manual_seed(0)
    most = 1e-2 if dtype == torch.bfloat16 else LIMIT
    worst = 0.0
    for each in benchmark.comparisons(Setting(GPU, dtype, 3, 8)):
        exact = each._replace(given=tuple(map(_exactly, each.given)))
        outer = torch.randn_like(each.operation(*each.given))
        ours = each.run(each.operation, outer)
        worst = max(worst, *errors(ours, exact.run(exact.reference, outer.double())))
    print(f"{'ok  ' if worst <= most else 'FAIL'} {folder} in {dtype}: off by {worst:.0e} at most")
    return worst <= most


def _exactly(given: Tensor) -> Tensor:
    """The same numbers in float64; words stay what they are."""
    if not given.is_floating_point():
        return given
    return given.detach().double().requires_grad_(given.requires_grad)


def adam() -> bool:
    """Steps of AdamW by its kernel against float64."""
    ends = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        solver = Adam(0.9, 0.95, 1e-8, 0.1, decoupled=True)
        params, *grads = torch.randn(6, 3, 5000).to(GPU, dtype)
        state = {name: torch.zeros_like(params) for name in ("mean", "square")}
        for number, grad in enumerate(grads, 1):
            taken = torch.full((3, 1), number, dtype=torch.float64, device=GPU)
            solver.step_(params, grad, state, Step(0.1, taken))
        ends.append(params)
    error = far(*ends)
    print(f"{'ok  ' if error <= 1e-6 else 'FAIL'} AdamW, five steps: off by {error:.0e}")
    return error <= 1e-6


class Encoder(nn.Module):
    """A user's language model, of torch's own layers."""

    def __init__(self, words: int = 10, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 2, 128, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the word after each, which sees those before it."""
        length = words.shape[1]
        mask = torch.triu(torch.ones(length, length, device=words.device), diagonal=1).bool()
        found: Tensor = self.head(self.layers(self.embedding(words), mask))
        return found


def computed_twice(name: str, make: Callable[[], nn.Module]) -> bool:
    """A transformer in bf16 against the loop in float32, with activations kept, and recomputed."""
    torch.manual_seed(0)
    model = RowModel(make(), next_token, GPU)
    params, buffers = model.start()
    rows = params + 0.01 * torch.randn(8, len(params)).to(GPU)
    words = torch.randint(0, 10, (8, 32, 64)).to(GPU)
    given = rows, buffers.repeat(8, 1), Batch(words, words.roll(-1, 2), torch.arange(8).to(GPU))
    loop, found, memory = run(Looped(model), *given, 1), [], []
    for again in (False, True):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found.append(run(Fused(model, 99, "bf16", recompute=again), *given, 3))
        memory.append((torch.cuda.max_memory_allocated() - before) >> 20)
    off = [far(each[1], loop[1]) for each in found]
    good = max(off) <= 0.05 and far(found[0][1], found[1][1]) <= 0.02
    print(f"{'ok  ' if good else 'FAIL'} {name} in bf16: gradients off by {off[0]:.0e}, recomputed "
          f"{off[1]:.0e}; {memory[0]} and {memory[1]} MiB", flush=True)  # fmt: skip
    return good


def checks(*, transformers: bool, lstms: bool) -> Iterator[bool]:
    """Whether each of them is right, of those that are asked for."""
    folders = (*(OPERATIONS if transformers else ()), *(("recurrent", "dropout") if lstms else ()))
    for folder in folders:
        yield operation(folder, torch.bfloat16)
        yield operation(folder, torch.float32)
    if not transformers:
        return
    yield adam()
    yield computed_twice("gpt", lambda: gpt((64,), 10, layers=6, width=256, heads=4))
    yield computed_twice("torch's encoder", Encoder)
