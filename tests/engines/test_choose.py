import re
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partavg import Schedule, Simulation
from partavg.core.loop import Batch, Engine
from partavg.engines import choose as choosing
from partavg.engines import race
from partavg.engines.choose import Rows, check_engine, choose
from partavg.engines.fused import Fused
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.kernels import backend
from partavg.losses import next_token
from partavg.models import gpt, mlp


class Branch(nn.Module):
    """Takes a way that depends on its data, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out if bool(x.sum() > 0) else 2 * out


class Noise(nn.Module):
    """Random, but not by dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn_like(x))


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are for several; test_threads.py is about them."""
    monkeypatch.setattr(choosing, "_threads", lambda chunk, workers: 1)


def case(module: nn.Module, workers: int):
    model = RowModel(module, F.cross_entropy, torch.device("cpu"))
    batch = Batch(
        torch.randn(workers, 4, 5), torch.randint(0, 3, (workers, 4)), torch.arange(workers)
    )
    return model, model.start(), batch


def launches_dominate(engine: Engine, rows: Rows, batch: Batch) -> float:
    """Seconds per worker on a machine where a pass takes as long for many as for one."""
    return 0.004 if isinstance(engine, Looped) else 0.008 / len(rows[0])


def test_auto_takes_a_pass_where_launches_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_seconds", launches_dominate)
    choice = choose("auto", 0, *case(mlp((5,), 3), 64))
    assert (choice.name, choice.chunk, choice.precision) == ("fused", 64, "fp32")
    assert isinstance(choice.build(case(mlp((5,), 3), 64)[0]), Fused)
    assert choice.reason == "looped 4 ms, fused 0.12 ms per worker in chunks of 64"


def test_auto_takes_vmapped_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(engine: Engine, rows: Rows, batch: Batch) -> float:
        times = 20 if isinstance(engine, Fused) else 1
        return times * launches_dominate(engine, rows, batch)

    monkeypatch.setattr(race, "_seconds", seconds)
    choice = choose("auto", 0, *case(mlp((5,), 3), 64))
    assert (choice.name, choice.chunk) == ("vmapped", 64)
    assert choice.reason == ("looped 4 ms, fused 10 ms, vmapped 0.12 ms per worker in chunks of 64")


def test_all_engines_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_PLENTY", float("inf"))
    choice = choose("auto", 0, *case(mlp((5,), 3), 64))
    assert choice[:2] in (("looped", 1), *product(("vmapped", "fused"), (16, 64)))
    assert re.match(r"looped \S+ ms, fused \S+ ms, vmapped \S+ ms per worker", choice.reason)


def test_auto_takes_looped_when_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_seconds", lambda engine, rows, batch: float(len(rows[0])))
    choice = choose("auto", 0, *case(mlp((5,), 3), 64))
    assert (choice.name, choice.chunk) == ("looped", 1)


def test_a_chunk_that_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_seconds", launches_dominate)
    assert choose("auto", 8, *case(mlp((5,), 3), 64)).chunk == 8
    assert choose("vmapped", 8, *case(mlp((5,), 3), 64))[:2] == ("vmapped", 8)
    assert choose("vmapped", 0, *case(mlp((5,), 3), 64))[:2] == ("vmapped", 64)
    assert choose("looped", 8, *case(mlp((5,), 3), 64))[:2] == ("looped", 1)


def test_the_logic_of_the_fused_engine_is_checked_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "_INTERPRETED", True)
    monkeypatch.setattr(backend, "_installed", lambda: True)
    kernels, run = [], Fused._differentiate

    def differentiate(self: Fused, params: Tensor, *rest):
        kernels.append(backend.uses_triton(params))
        return run(self, params, *rest)

    monkeypatch.setattr(Fused, "_differentiate", differentiate)
    assert choose("fused", 0, *case(mlp((5,), 3), 4)).name == "fused"
    assert kernels == [False]
    assert backend.uses_triton(torch.ones(1))


def test_a_faster_precision_may_round_but_not_be_wrong() -> None:
    model, start, batch = case(mlp((5,), 3, batch_norm=True), 2)
    rows = race.rows_of(start, 2, apart=0.01)
    one = choosing._try(Looped(model), rows, batch)
    noise = torch.randn(one.grads.shape).mul(one.grads.norm() / one.grads.numel() ** 0.5)
    near = one._replace(grads=one.grads + 0.3 * noise)
    assert choosing._agree(one, near, rounded=True)
    assert not choosing._agree(one, near)
    for wrong in (
        one._replace(grads=one.grads + noise),
        one._replace(grads=one.grads * torch.nan),
        one._replace(losses=1.2 * one.losses),
        one._replace(buffers=one.buffers + 1),
    ):
        assert not choosing._agree(one, wrong, rounded=True)


def test_one_worker_works() -> None:
    assert choose("auto", 0, *case(mlp((5,), 3), 1)).chunk == 1


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Branch(), "data-dependent control flow"),
        (Noise(), "it draws random numbers from torch by itself"),
    ],
)
def test_what_vmap_cannot_do_falls_back_to_looped_and_says_why(module: nn.Module, why: str) -> None:
    choice = choose("auto", 0, *case(module, 4))
    assert choice.name == "looped"
    assert why in choice.reason
    assert "\n" not in choice.reason
    with pytest.raises(ValueError, match=f"engine vmapped cannot run this model: .*{why}"):
        choose("vmapped", 0, *case(module, 4))


class Checkpointed(nn.Module):
    """Computes its forward pass again during the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


class Masked(nn.Module):
    """Has an infinite buffer, as attention masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.mask.clamp(-5)


def test_activation_checkpointing_works_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the backward pass finds the parameters that the forward pass used."""
    monkeypatch.setattr(choosing, "_PLENTY", float("inf"))
    module = Checkpointed()
    choice = choose("auto", 0, *case(module, 4))
    assert choice.name in ("looped", "fused")
    assert "vmapped cannot run this model" in choice.reason
    model, (params, buffers), batch = case(module, 4)
    rows = params + torch.arange(4)[:, None] / 10
    found = list(Looped(model)(rows, buffers.expand(4, -1), batch))
    plain, _, _ = case(module.layers, 4)
    expected = list(Looped(plain)(rows, buffers.expand(4, -1), batch))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(next(iter(ours.pieces))[1], next(iter(theirs.pieces))[1])


def test_dropout_inside_activation_checkpointing_is_refused() -> None:
    module = Checkpointed()
    module.layers.append(nn.Dropout(0.5))
    with pytest.raises(ValueError, match="dropout is computed again in the backward pass"):
        choose("auto", 0, *case(module, 4))


@pytest.mark.parametrize(
    "module", [Masked(), mlp((5,), 3, dropout=0.3, batch_norm=True), mlp((5,), 3).bfloat16()]
)
def test_models_that_vmap_can_run_are_not_turned_away(module: nn.Module) -> None:
    model, start, batch = case(module, 4)
    batch = batch._replace(inputs=batch.inputs.to(model.dtype))
    assert choose("vmapped", 0, model, start, batch).name == "vmapped"


class Silent(nn.Linear):
    """Fails under vmap without a word."""

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            raise AssertionError
        return super().forward(x)


def test_an_error_without_a_text_is_named() -> None:
    assert "AssertionError" in choose("auto", 0, *case(Silent(5, 3), 4)).reason


def test_too_little_memory_for_a_large_pass_means_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds(engine: Engine, rows, batch: Batch) -> float:
        if len(rows[0]) > 16:
            raise torch.OutOfMemoryError
        return 1 / len(rows[0])

    monkeypatch.setattr(race, "_seconds", seconds)
    assert choose("auto", 0, *case(mlp((5,), 3), 64))[:2] == ("fused", 16)


def test_a_users_own_mistake_is_not_hidden() -> None:
    """A model that fails in every engine fails with its own error, which says where it was."""
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as error:
        choose("auto", 0, *case(nn.Linear(4, 3), 4))
    assert error.value.__notes__ == [
        "raised in the model's forward pass on inputs torch.float32 [4, 5], "
        "when partavg tried the first batch of a worker"
    ]
    with pytest.raises(IndexError, match="out of bounds") as error:
        choose("auto", 0, *case(nn.Linear(5, 1), 4))
    assert "in the loss of the model's outputs and targets torch.int64 [4]" in str(
        error.value.__notes__
    )


@pytest.mark.parametrize(
    ("engine", "chunk", "precision", "sentence"),
    [
        (
            "turbo",
            0,
            "auto",
            "engine = 'turbo' is not known: use auto, looped, threads, vmapped, fused",
        ),
        ("fuse", 0, "auto", r"engine = 'fuse' is not known: did you mean 'fused'\?"),
        (None, 0, "auto", "engine = 'None' is not known"),
        ("auto", -1, "auto", "chunk = -1 is no number of workers"),
        ("auto", 1.5, "auto", "chunk = 1.5 is no number of workers"),
        ("auto", True, "auto", "chunk = True is no number of workers"),
        ("auto", 0, "bf6", r"precision = 'bf6' is not known: did you mean 'bf16'\?"),
    ],
)
def test_what_is_no_engine_is_refused(engine, chunk, precision, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_engine(engine, chunk, precision)
    with pytest.raises(ValueError, match=sentence):
        Simulation(
            nn.Linear(5, 3), F.cross_entropy, (), [], schedule=Schedule.periodic(1), lr=0.1,
            engine=engine, chunk=chunk, precision=precision,
        )  # fmt: skip


def test_trying_changes_nothing() -> None:
    model, start, batch = case(mlp((5,), 3, batch_norm=True), 4)
    before = [row.clone() for row in start]
    choose("auto", 0, model, start, batch)
    assert all(torch.equal(a, b) for a, b in zip(start, before, strict=True))


@pytest.mark.parametrize("fits", [True, False])
def test_activations_are_computed_twice_where_no_worker_fits(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    def fitting(choice: choosing.Choice, *rest: Any) -> choosing.Choice | None:
        return choice._replace(chunk=1) if fits or choice.recompute else None

    monkeypatch.setattr(choosing, "_fitting", fitting)
    texts = torch.randint(0, 9, (2, 3, 8))
    model = RowModel(gpt((8,), 9, layers=1, width=8, heads=1), next_token, torch.device("cpu"))
    batch = Batch(texts, texts.roll(-1, 2), torch.arange(2))
    assert choose("fused", 0, model, model.start(), batch).recompute is not fits
    if not fits:
        with pytest.raises(ValueError, match="needs more memory than the GPU has"):
            choose("fused", 0, *case(mlp((5,), 3), 4))  # which has nothing to cut
