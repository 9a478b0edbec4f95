"""Lightning's Trainer with the strategy, against `attach` in a plain loop."""

from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.frameworks import RANKS, apart, copy, distance, mean_over_ranks, twin
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import partavg

STEPS, BATCH, LR = 8, 4, 0.05


def net(rank: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Another one on each rank."""
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def loader(dtype: torch.dtype = torch.float64) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS * BATCH * RANKS, 3, generator=draw, dtype=dtype)
    return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), BATCH, shuffle=True)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@cache
def modules() -> Any:
    """The modules, which need Lightning, that only ranks import."""
    from types import SimpleNamespace

    from lightning import LightningModule

    class Plain(LightningModule):  # type: ignore[misc]
        """A classifier that notes what it has seen, and itself after every batch."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.net = model
            self.seen: list[tuple[Tensor, Tensor]] = []
            self.own: dict[int, dict[str, Tensor]] = {}
            self.shown: dict[int, dict[str, Tensor]] = {}

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            self.seen.append((batch[0], batch[1]))
            return loss_of(self.net, batch)

        def on_train_batch_end(self, *_: Any) -> None:
            self.own[self.global_step] = copy(self.net)

        def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.log("loss", loss_of(self.net, batch), sync_dist=True)

        def on_validation_end(self) -> None:  # after ModelCheckpoint's
            self.shown[self.global_step] = copy(self.net)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=LR, momentum=0.9)
            rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return [optimizer], [{"scheduler": rates, "interval": "step"}]

    class Two(Plain):
        """Two optimizers, each with half of the layers, that step by hand."""

        automatic_optimization = False

        def training_step(self, batch: tuple[Tensor, Tensor]) -> None:
            loss = super().training_step(batch)
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self) -> Any:
            halves = self.net[:2].parameters(), self.net[2:].parameters()
            return [torch.optim.SGD(half, lr=LR, momentum=0.9) for half in halves]

    return SimpleNamespace(Plain=Plain, Two=Two)


def too_large() -> GradScaler:
    """A scaler whose first steps are skipped."""
    return GradScaler("cpu", init_scale=2.0**18)


def trainer(folder: Path, options: dict[str, Any], **arguments: Any) -> Any:
    from lightning import Trainer
    from lightning.pytorch.plugins import MixedPrecision

    from partavg.integrations.lightning import PartialAveragingStrategy

    if arguments.get("precision") == "16-mixed":  # of a GPU; on a CPU it must be made by hand
        arguments["plugins"] = [MixedPrecision(arguments.pop("precision"), "cpu", too_large())]
    usual: dict[str, Any] = {"max_steps": STEPS, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return Trainer(
        strategy=PartialAveragingStrategy(**options),
        accelerator="cpu",
        devices=RANKS,
        default_root_dir=folder,
        **{**usual, **quiet, **arguments},
    )


def both(
    rank: int, folder: Path, kind: str, options: dict[str, Any], arguments: dict[str, Any]
) -> tuple[float, float, Tensor]:
    """How far the strategy's model is from the twin's and from the mean; what this rank saw."""
    precision = arguments.get("precision", "64")
    half, dtype = {
        "64": (None, torch.float64),
        "bf16-mixed": (torch.bfloat16, torch.float32),
        "16-mixed": (torch.float16, torch.float32),
    }[precision]
    module = getattr(modules(), kind)(net(rank, dtype))
    run = trainer(folder, options, **arguments)
    run.fit(module, loader(dtype))
    accumulate = arguments.get("accumulate_grad_batches", 1)
    assert run.strategy.averager.steps == len(module.seen) / accumulate
    assert bool(run.strategy.averager.skipped) == (precision == "16-mixed")
    cast = partial(torch.autocast, "cpu", half) if half else nullcontext
    model = net(rank, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 if kind == "Plain" else 1.0)
    other = twin(
        model, optimizer, module.seen, loss_of, options, accumulate=accumulate,
        clip=arguments.get("gradient_clip_val", 0.0), rates=rates, context=cast,
        scaler=too_large() if precision == "16-mixed" else None,
    )  # fmt: skip
    found = copy(module.net)
    return distance(found, other), apart(found), torch.cat([x for x, _ in module.seen])


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("Plain", {"interval": 4}, {}),
    "accumulated": (
        "Plain",
        {"interval": 4},
        {"accumulate_grad_batches": 2, "max_steps": 4, "gradient_clip_val": 0.3},
    ),
    "bf16": ("Plain", {"interval": 4}, {"precision": "bf16-mixed"}),
    "fp16": ("Plain", {"interval": 4}, {"precision": "16-mixed"}),
    "FedProx": ("Plain", {"interval": 4, "solver": partavg.FedProx(5.0)}, {}),
    "two optimizers": ("Two", {"interval": 4}, {"max_steps": 2 * STEPS}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trainer_does_what_attach_does(case: str, ranks: Ranks, tmp_path: Path) -> None:
    found = ranks(both, tmp_path, *CASES[case])
    for difference, from_mean, _ in found:
        assert difference < (1e-6 if case in ("bf16", "fp16") else 1e-9)
        assert from_mean < (1e-6 if case in ("bf16", "fp16") else 1e-12)
    seen = [{tuple(row.tolist()) for row in inputs} for *_, inputs in found]
    assert not seen[0] & seen[1], "each rank has its own share"


def checkpoint(rank: int, folder: Path) -> tuple[float, ...]:
    """How far checkpoints and the validation loss are from those of the mean of the ranks."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    stepwise = ModelCheckpoint(folder, "step", every_n_train_steps=6)
    monitored = ModelCheckpoint(folder, "best", monitor="loss", save_last="link")
    module = modules().Plain(net(rank))
    run = trainer(
        folder, {"interval": 4}, callbacks=[stepwise, monitored], enable_checkpointing=True,
        val_check_interval=4, max_steps=6,
    )  # fmt: skip
    run.fit(module, loader(), loader())
    found = []
    for name, step in (("step", 6), ("best", 4), ("last", 4)):
        saved = torch.load(folder / f"{name}.ckpt", weights_only=True)
        assert saved["global_step"] == step
        state = {key.removeprefix("net."): value for key, value in saved["state_dict"].items()}
        found.append(distance(state, mean_over_ranks(module.own[step])))
    model = net(rank)
    model.load_state_dict(state)
    model.eval()
    inputs, targets = loader().dataset.tensors  # type: ignore[attr-defined]
    loss = abs(loss_of(model, (inputs, targets)).item() - monitored.best_model_score.item())
    found.append(distance(module.shown[4], mean_over_ranks(module.own[4])))
    return apart(module.own[4]), *found, loss


def test_checkpoints_and_validation_are_of_the_averaged_model(ranks: Ranks, tmp_path: Path) -> None:
    for from_mean, *found, loss in ranks(checkpoint, tmp_path):
        assert from_mean > 1e-4, "ranks were apart"
        assert max(found) < 1e-12
        assert loss < 1e-6


def resumed(rank: int, folder: Path, kind: str, options: dict[str, Any]) -> float:
    """How far a run that was resumed after an epoch ends from one that was not."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(
        folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=False
    )  # but while the averaged model is shown, at the end of the validation
    latest = ModelCheckpoint(folder / "latest", "{epoch}", every_n_train_steps=3)
    usual = {"max_steps": -1, "max_epochs": 3, "use_distributed_sampler": False}
    whole = getattr(modules(), kind)(net(rank))
    run = trainer(folder, options, callbacks=[saving, latest], enable_checkpointing=True, **usual)
    run.fit(whole, unshuffled(rank), unshuffled(rank))
    again = getattr(modules(), kind)(net(7 + rank))
    other = trainer(folder, options, **usual)
    other.fit(again, unshuffled(rank), unshuffled(rank), ckpt_path=folder / "epoch=1.ckpt")
    assert len(again.seen) == 3
    kept = {path.name for path in (folder / "latest").iterdir()}
    assert kept == {f"epoch=2.ckpt{end}" for end in ("", ".rank0", ".rank1")}
    return distance(copy(whole.net), copy(again.net))


def unshuffled(rank: int) -> DataLoader[Any]:
    """This rank's share in the same order in every run: Lightning keeps no random state."""
    inputs, targets = (t[rank::RANKS] for t in loader().dataset.tensors)  # type: ignore[attr-defined]
    return DataLoader(TensorDataset(inputs[: 3 * BATCH], targets[: 3 * BATCH]), BATCH)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Plain", {"interval": 4}),
        ("Plain", {"interval": 4, "delay": 2, "wire": "int8", "solver": partavg.diloco()}),
        ("Two", {"interval": 4}),
    ],
    ids=["plain", "with memory", "two optimizers"],
)
def test_training_goes_on_exactly_where_it_was_saved(
    kind: str, options: dict[str, Any], ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks(resumed, tmp_path, kind, options) == [0] * len(ranks)


def failing(rank: int, folder: Path) -> None:
    """A training in which the second rank has no fourth batch."""
    module = modules().Plain(net(rank))

    def lose(*_: Any) -> None:
        if rank == 1 and len(module.seen) == 4:
            raise OSError("the disk is gone")

    module.net.register_forward_pre_hook(lose)
    trainer(folder, {"interval": 4}).fit(module, loader())


def test_a_rank_that_fails_tells_the_others_why(ranks: Ranks, tmp_path: Path) -> None:
    (_, first), (_, second) = ranks.answers(failing, tmp_path)
    assert second.startswith("OSError: the disk is gone")
    assert first.startswith("RankLost: rank 1")
    assert "the disk is gone" in first.splitlines()[0]


def unknown(rank: int) -> None:
    trainer(Path(), {"interval": 4, "find_unused_parameters": True})


def test_an_option_that_nobody_knows_is_one_sentence(ranks: Ranks) -> None:
    for done, answer in ranks.answers(unknown):
        assert not done
        assert answer.startswith("ValueError: option 'find_unused_parameters' is not known: use ")
