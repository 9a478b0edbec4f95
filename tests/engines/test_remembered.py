"""A trial of the fused engine that succeeded is not repeated; a pretended GPU remembers it."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines import choose as choosing
from partavg.engines import fitting, remembered
from partavg.engines.choice import Choice
from partavg.engines.choose import choose
from partavg.engines.fused.program import Program
from partavg.engines.model import RowModel
from partavg.kernels import kept_files
from partavg.losses import cross_entropy
from partavg.models import mlp

CPU = torch.device("cpu")
FUSED = Choice("fused", 0, "", "fp32")


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remembered, "_machine", lambda device: "a pretended GPU")
    monkeypatch.setenv(kept_files.VARIABLE, str(tmp_path / "kept"))


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which parts of a trial were run."""
    seen: list[str] = []
    for name in ("examine", "_expected", "_problem"):
        run = getattr(choosing, name)
        monkeypatch.setattr(
            choosing, name, partial(lambda n, r, *a: seen.append(n) or r(*a), name, run)
        )
    return seen


TRIAL = ["examine", "_expected", "_problem"]


def case(module: nn.Module, loss: Any = F.cross_entropy, workers: int = 4):
    model = RowModel(module, loss, CPU)
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(workers, 6, 5, generator=made)
    targets = torch.randint(3, (workers, 6), generator=made)
    return model, Batch(inputs, targets, torch.arange(workers))


def chosen(module: nn.Module, loss: Any = F.cross_entropy) -> tuple[Choice, Tensor]:
    """The fused engine as it is chosen, and the gradients that it computes."""
    model, batch = case(module, loss)
    choice = choose("fused", 0, model, model.start(), batch)
    rows = tuple(row.expand(4, -1).clone() for row in model.start())
    return choice, choosing._try(choice.build(model), rows, batch).grads


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "kept").glob("*"))


def key(
    module: nn.Module | None = None,
    loss: Any = F.cross_entropy,
    choice: Choice = FUSED,
    **fields: Tensor,
) -> str | None:
    model, batch = case(module or mlp((5,), 3), loss)
    return remembered.fingerprint(choice, model, batch._replace(**fields))


def test_a_trial_that_succeeded_is_not_repeated(tries: list[str], tmp_path: Path) -> None:
    net = mlp((5,), 3, batch_norm=True)
    first, grads = chosen(net)
    assert tries == TRIAL
    again, same = chosen(net)
    assert tries == TRIAL
    assert torch.equal(grads, same)
    assert "a trial has shown before" in again.reason
    assert again._replace(reason=first.reason) == first
    assert [path.suffix for path in kept(tmp_path)] == [".trial"]


def test_the_same_thing_has_the_same_fingerprint() -> None:
    assert key() == key() is not None
    assert key(inputs=torch.zeros(4, 6, 5)) == key()


def scaled_linear(scale: float, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return scale * (x @ weight.T)


def test_each_thing_that_matters_makes_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        key(),
        key(mlp((5,), 3, batch_norm=True)),
        key(mlp((5,), 4)),
        key(mlp((5,), 3).double()),
        key(nn.Sequential(*mlp((5,), 3), nn.Identity())),
        key(loss=cross_entropy),
        key(loss=partial(cross_entropy, label_smoothing=0.1)),
        key(choice=FUSED._replace(precision="bf16")),
        key(choice=FUSED._replace(deterministic=True)),
        key(inputs=torch.zeros(4, 7, 5)),
        key(inputs=torch.zeros(4, 6, 5).double()),
        key(inputs=torch.zeros(4, 5, 6).transpose(1, 2)),
        key(targets=torch.zeros(4, 6)),
        key(keys=torch.arange(5)),
    }
    with monkeypatch.context() as patch:
        patch.setattr(remembered, "_machine", lambda device: "another GPU")
        found.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(F, "linear", lambda x, weight, bias=None: x @ weight.T)
        found.add(key())
    for scale in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(F, "linear", partial(scaled_linear, scale))
            found.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "deterministic", not torch.backends.cudnn.deterministic)
        found.add(key())
    assert None not in found
    assert len(found) == 19


def test_our_own_sources_are_known_to_the_letter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remembered, "__file__", str(tmp_path / "engines" / "remembered.py"))
    found = set()
    for text in ("one", "two"):
        for name in remembered._SOURCES:
            path = tmp_path / (name if name.endswith(".py") else f"{name}/deep/kernel.cu")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            found.add(remembered._software.__wrapped__() if name == "torch_internals.py" else None)
    assert len(found) == 3


class Counts(nn.Module):
    """Traced as if it did not count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(5, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn(5))


class Wild(nn.Module):
    """Not covered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).erf()


class Equal(nn.Sequential):
    """Says that it is any other one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 0


def test_models_that_say_they_are_equal_have_programs_of_their_own() -> None:
    models = [case(Equal(nn.Linear(5, 3), layer))[0] for layer in (nn.ReLU(), nn.Tanh())]
    one, other = map(Program.of, models)
    assert one is Program.of(models[0]) is not other


def test_what_cannot_be_known_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = mlp((5,), 3)
    hooked[1].register_forward_hook(lambda *_: None)
    assert key(hooked) is None
    assert key(loss=lambda outputs, targets: F.cross_entropy(outputs, targets)) is None
    assert key(Draws()) is None
    assert key(Wild()) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert key() is None
    for place in (kept_files.OFF, "~nobody who is known/kept"):
        monkeypatch.setenv(kept_files.VARIABLE, place)
        assert key() is None


def test_on_a_cpu_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert key() is None


@pytest.mark.parametrize(("net", "said"), [(Counts, "'calls' is changed"), (Wild, "method erf")])
def test_a_trial_that_fails_is_repeated(
    net: type[nn.Module], said: str, tries: list[str], tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=said):
            chosen(net())
    assert tries.count("examine") == 2
    assert not kept(tmp_path)


def test_where_the_engine_no_longer_runs_the_trial_says_why(tries: list[str]) -> None:
    net = mlp((5,), 3)
    chosen(net)
    with torch.no_grad():
        net[1].weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the loss of the first batch is nan"):
        chosen(net)
    assert tries[3:] == ["examine", "_expected"]


@pytest.mark.parametrize("content", [b"", b"wrong\nthe fused engine", b"\xff"])
def test_a_damaged_file_is_written_again(content: bytes, tries: list[str], tmp_path: Path) -> None:
    net = mlp((5,), 3)
    chosen(net)
    (path,) = kept(tmp_path)
    path.write_bytes(content)
    chosen(net)
    assert tries == 2 * TRIAL
    chosen(net)
    assert tries == 2 * TRIAL


def test_several_write_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        known = list(
            pool.map(lambda _: (remembered.remember("a"), remembered.is_known("a")), range(64))
        )
    assert all(found for _, found in known)
    assert [path.name for path in kept(tmp_path)] == ["a.trial"]


def test_where_nothing_can_be_written_each_run_tries(
    monkeypatch: pytest.MonkeyPatch, tries: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(kept_files.VARIABLE, str(file / "kept"))
    for _ in range(2):
        chosen(mlp((5,), 3))
    assert tries == 2 * TRIAL


@pytest.mark.parametrize(
    ("free", "chunk", "size"),
    [(10**9, 0, 128), (30_000, 0, 64), (20_000, 0, 43), (4_000, 0, None), (4_000, 16, 16)],
)
def test_passes_are_as_large_as_the_free_memory(
    free: int, chunk: int, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_free", lambda device: free)
    found = fitting.in_passes(FUSED._replace(chunk=chunk), 128, torch.ones(2), 300.0)
    assert (found and found.chunk) == size


def test_activations_that_were_computed_twice_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fitting(choice: Choice, *rest: Any) -> Choice:
        return choice._replace(chunk=1, recompute=True)

    monkeypatch.setattr(choosing, "_fitting", fitting)
    model, batch = case(mlp((5,), 3))
    assert choose("fused", 0, model, model.start(), batch).recompute
    assert not kept(tmp_path)
