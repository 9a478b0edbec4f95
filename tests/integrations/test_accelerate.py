"""Loops with accelerate, against `attach` in a plain loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integrations.frameworks import RANKS, apart, copy, distance, mean_over_ranks, twin
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import partavg

BATCHES, BATCH, LR = 8, 4, 0.05


def net(rank: int) -> nn.Module:
    """Another one on each rank."""
    torch.manual_seed(rank)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)
    ).double()  # fmt: skip


def samples() -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(BATCHES * BATCH * RANKS, 3, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets, factor = batch
    return factor * F.cross_entropy(model(inputs), targets)


class Loop:
    """A loop as accelerate's examples for LocalSGD have it."""

    def __init__(
        self, rank: int, accumulate: int, options: dict[str, Any], *, scaled: bool = False
    ) -> None:
        from accelerate import Accelerator

        from partavg.integrations.accelerate import PartialAveraging

        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        if scaled:  # as accelerate does for fp16, which it has on GPUs only
            self.accelerator.scaler = GradScaler("cpu")
        self.bad = BATCHES // 2 if scaled and rank == 1 else None
        """The batch, of one rank, whose gradients are not finite."""
        self.plain = net(rank)
        optimizer = torch.optim.SGD(self.plain.parameters(), lr=LR, momentum=0.9)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            self.plain, optimizer, DataLoader(samples(), BATCH)
        )
        self.averaging = PartialAveraging(
            accelerator=self.accelerator, model=self.model, optimizer=self.optimizer, **options
        )
        self.seen: list[Any] = []

    def run(self, first: int = 0, stop: int = BATCHES) -> None:
        """Some batches of an epoch."""
        for number, batch in enumerate(self.loader):
            if first <= number < stop:
                batch = (*batch, float("nan") if number == self.bad else 1.0)
                self.seen.append(batch)
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(loss_of(self.model, batch))
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.averaging.step()


def both(
    rank: int, accumulate: int, options: dict[str, Any], scaled: bool = False
) -> tuple[float, float, int, int, Tensor]:
    """How far the loop's model is from the twin's and from the mean; its steps, what it saw."""
    loop = Loop(rank, accumulate, options, scaled=scaled)
    with loop.averaging:
        loop.run()
    model = net(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    other = twin(
        model, optimizer, loop.seen, loss_of, options,
        accumulate=accumulate, scaler=GradScaler("cpu") if scaled else None,
    )  # fmt: skip
    found, averager = copy(loop.plain), loop.averaging.averager
    assert averager
    seen = torch.cat([inputs for inputs, *_ in loop.seen])
    return distance(found, other), apart(found), averager.steps, averager.skipped, seen


CASES: dict[str, tuple[Any, ...]] = {
    "plain": (1, {"interval": 4}),
    "accumulated": (2, {"interval": 3}),
    "scaled": (1, {"interval": 4}, True),
    "SCAFFOLD": (2, {"interval": 2, "solver": partavg.SCAFFOLD()}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_does_what_attach_does(case: str, ranks: Ranks) -> None:
    found = ranks(both, *CASES[case])
    for rank, (difference, from_mean, steps, skipped, _) in enumerate(found):
        assert difference < 1e-9
        assert from_mean < 1e-12
        assert steps == BATCHES / CASES[case][0]
        assert skipped == (case == "scaled" and rank == 1)
    seen = [{tuple(row.tolist()) for row in inputs} for *_, inputs in found]
    assert not seen[0] & seen[1], "each rank has its own share"


def saved(rank: int, folder: Path, options: dict[str, Any]) -> tuple[float, ...]:
    """How far what is shown and saved is from the mean, and a resumed run from one that is not."""
    whole = Loop(rank, 1, options)
    with whole.averaging as averaging:
        whole.run(stop=3)
        own = copy(whole.plain)
        mean = mean_over_ranks(own)
        with averaging.averaged():
            shown = copy(whole.plain)
        where = averaging.save_state(str(folder))
        state = load_file(folder / "model.safetensors")
        whole.run(first=3)
    again = Loop(7 + rank, 1, options)
    with again.averaging as averaging:
        averaging.load_state(where)
        again.run(first=3)
    on_disk = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    ends = copy(whole.plain), copy(again.plain)
    return apart(own), distance(shown, mean), distance(on_disk, mean), distance(*ends)


@pytest.mark.parametrize(
    "options",
    [{"interval": 4}, {"interval": 4, "delay": 2, "wire": "int8", "solver": partavg.diloco()}],
    ids=["plain", "with memory"],
)
def test_the_averaged_model_is_shown_and_saved(
    options: dict[str, Any], ranks: Ranks, tmp_path: Path
) -> None:
    for from_mean, shown, on_disk, after in ranks(saved, tmp_path, options):
        assert from_mean > 1e-4, "ranks were apart"
        assert max(shown, on_disk) < 1e-12
        assert after == 0, "training goes on exactly where it was saved"


def disabled(rank: int, folder: Path) -> float:
    """A run in which ranks are kept together by DDP, as they are without averaging."""
    loop = Loop(rank, 1, {"interval": 4, "enabled": False})
    with loop.averaging as averaging, averaging.averaged():
        loop.run()
        averaging.load_state(averaging.save_state(str(folder)))
    assert averaging.averager is None
    return apart(copy(loop.plain))


def test_averaging_can_be_switched_off(ranks: Ranks, tmp_path: Path) -> None:
    assert max(ranks(disabled, tmp_path)) < 1e-12


def sharded(rank: int) -> None:
    from types import SimpleNamespace

    from accelerate import DistributedType

    from partavg.integrations.accelerate import PartialAveraging

    accelerator: Any = SimpleNamespace(distributed_type=DistributedType.FSDP)
    model = net(rank)
    optimizer = torch.optim.SGD(model.parameters())
    PartialAveraging(accelerator, model, 4, optimizer=optimizer)


def test_a_model_that_is_sharded_over_all_ranks_is_one_sentence(ranks: Ranks) -> None:
    for done, answer in ranks.answers(sharded):
        assert not done
        assert answer.startswith("ValueError: FSDP shards one model over all ranks of this accel")
