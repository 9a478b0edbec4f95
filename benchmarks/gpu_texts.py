"""Rows of gpu.py for language models: ours, one compiled model, and a plain loop over workers.

The compiled model trains on the tokens of all workers: flash attention, bf16, one fused AdamW step.
It has one copy of the parameters where ours has one for each worker, so what it takes ought to be a
floor; where it is slower, it is not at its best.
"""

from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from typing import Any, NamedTuple

import gpu
import torch
from torch import Tensor

import partavg
from partavg.core.cuts import by_channel
from partavg.losses import next_token
from partavg.models import gpt


class Row(NamedTuple):
    """A model, and what each worker trains on in a step."""

    size: str
    words: int
    context: int
    batch: int
    workers: int = 8
    tied: bool = True

    def model(self) -> torch.nn.Module:
        """A new one."""
        torch.manual_seed(0)
        return gpt((self.context,), self.words, size=self.size, tied=self.tied)

    def texts(self, count: int) -> tuple[Tensor, Tensor]:
        """Random tokens, and those after them."""
        tokens = torch.randint(0, self.words, (count, self.context + 1))
        return tokens[:, :-1], tokens[:, 1:]


ROWS = {
    "GPT, 10.9 M, 8 x 16 x 256": Row("11m", 256, 256, 16),
    "GPT, 163 M, 8 x 4 x 1,024": Row("gpt2", 50_304, 1_024, 4, tied=False),
}
Iterate = Callable[[], object]


def simulation(row: Row, **options: Any) -> partavg.Simulation:
    """AdamW, and 1/32 of the model averaged after every step."""
    texts = row.texts(row.workers * row.batch * 2)
    split = list(torch.arange(len(texts[0])).view(row.workers, -1))
    given = {"schedule": partavg.Schedule.partial(32), **options}
    return partavg.Simulation(
        row.model(), next_token, texts, split, lr=1e-3, batch=row.batch, device=gpu.GPU,
        **{"solver": partavg.adamw(beta2=0.95, weight_decay=0.1), **given},
    )  # fmt: skip


def trained(row: Row, count: int, compiled: bool) -> Iterate:
    """A step of one model on so many texts."""
    model = row.model().to(gpu.GPU)
    x, y = (texts.to(gpu.GPU) for texts in row.texts(count))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return next_token(model(x), y)

    run: Any = torch.compile(loss) if compiled else loss
    adam = torch.optim.AdamW(
        model.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def iterate() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            found = run(x, y)
        found.backward()
        adam.step()
        adam.zero_grad()

    return iterate


def loop(row: Row) -> Iterate:
    """One worker after another."""
    each = [trained(row, row.batch, compiled=False) for _ in range(row.workers)]

    def iterate() -> None:
        for one in each:
            one()

    return iterate


def timed(iterate: Iterate, rounds: int, warm: int = 3) -> list[float]:
    """Milliseconds of each iteration, one after another as in training."""
    for _ in range(warm):
        iterate()
    return gpu.steady(iterate, rounds)


def ours(row: Row, rounds: int, **options: Any) -> dict[str, Any]:
    """A whole iteration, and the memory that it takes."""
    torch.cuda.reset_peak_memory_stats()
    made = simulation(row, **options)
    times = timed(partial(next, made.train(until=10**9)), rounds, 10)
    return {
        "ms": median(times),
        "quartiles": quantiles(times, n=4),
        "n": rounds,
        "engine": f"{made.engine.name}, chunk {made.engine.chunk}, {made.engine.precision}",
        "reason": made.engine.reason,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def measure(row: Row, rounds: int = 30) -> dict[str, Any]:
    """Ours with and without outer steps, and what stands beside it."""
    found = ours(row, rounds)
    torch.cuda.empty_cache()
    outer = ours(row, rounds, solver=partavg.diloco(momentum=0.6, beta2=0.95))
    found["outer_ms"] = outer["ms"]
    one = partial(trained, row, row.workers * row.batch, compiled=True)
    for name, make, times in (("one_model", one, rounds), ("loop", partial(loop, row), 3)):
        torch.cuda.empty_cache()
        taken = median(timed(make(), times))
        found |= {f"{name}_ms": taken, f"over_{name}": taken / found["ms"]}
    torch.cuda.empty_cache()
    return found | bandwidth(row)


def bandwidth(row: Row, workers: int = 8) -> dict[str, float]:
    """Averaging a part, and a step of AdamW, as shares of the bandwidth of a copy."""
    layout = partavg.Layout.of(dict(row.model().named_parameters()))
    width = min(layout.size, 1 << 26)
    params, grads, mean, square = torch.randn(4, workers, width, device=gpu.GPU)
    solver = partavg.adamw(weight_decay=0.1)
    taken = torch.full((workers, 1), 9.0, dtype=torch.float64, device=gpu.GPU)
    state = {"mean": mean, "square": square.square_()}
    step = partial(solver.step_, params, grads, state, partavg.Step(1e-9, taken))
    copied = median(timed(lambda: mean.copy_(params), 20))
    stepped = median(timed(step, 20))
    found = {
        "adamw_share_of_copy": 3.5 * copied / stepped
    }  # 4 tensors read, 3 written, not 1 and 1
    del params, grads, mean, square, state, step
    torch.cuda.empty_cache()
    found["averaging_share_of_copy"] = gpu.averaging(
        layout, by_channel(layout, 32), workers
    )["share_of_copy_bandwidth"]  # fmt: skip
    return found
