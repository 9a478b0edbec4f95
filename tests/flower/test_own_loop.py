"""A client's own training loop, and its own loader: the same numbers, wherever it was stopped."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tests.flower.federation as f
import torch
from tests.flower.faults import fault
from tests.flower.federation import PERIODIC, assert_equal, federation, owned, server, simulation
from tests.flower.test_faults import QUICK
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from partavg import checkpoint
from partavg.core.seeds import fold
from partavg.flower import LocalWork
from partavg.flower.feed import Feed, View, feed_of

MOMENTUM = {"solver.momentum": 0.9}
ONE = {"training.workers": 1, "flower.min_clients": 1, **PERIODIC}


@pytest.fixture(autouse=True)
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that draws nothing, so that whoever trains it gets the same numbers."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)
        ).double()

    monkeypatch.setattr(f, "model", model)


def own_sgd(module: nn.Module, work: LocalWork) -> float:
    """What anybody would write."""
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr(work.first), momentum=0.9)
    if "optimizer" in work.state:
        optimizer.load_state_dict(work.state["optimizer"])
    total = 0.0
    for inputs, targets in work.batches():
        optimizer.zero_grad()
        loss = work.loss(module(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    work.state["optimizer"] = optimizer.state_dict()
    return total / work.steps


@pytest.mark.parametrize(
    "changes",
    [
        {},
        PERIODIC,
        {"solver.name": "fedadam"},
        {"averaging.parts": 2, "training.steps": 11},
        {"averaging.local": '["3.*"]'},
    ],
)
def test_a_loop_of_ones_own_is_the_simulation(tmp_path: Path, changes: dict[str, Any]) -> None:
    """SGD of torch with momentum, kept between messages, is our SGD with momentum."""
    changes = {"training.steps": 8, **changes}
    run = server(federation(tmp_path, changes, local_steps=own_sgd, share_loss=True))
    rows = list(run)
    named = {"solver.base.momentum": 0.9} if "solver.name" in changes else MOMENTUM
    local = {"local": ["3.*"]} if "averaging.local" in changes else {}
    made = simulation({**changes, **named}, **local)
    if not local:
        assert_equal(run.model(), made.consensus())
    kept = checkpoint.load(next((tmp_path / "node1" / "test" / "client-1").iterdir())) or {}
    torch.testing.assert_close(
        kept["workers"]["params"][0], made.workers.params[1], rtol=0, atol=1e-9
    )
    assert rows[0]["loss"] > 0


def test_it_is_told_what_will_be_sent(tmp_path: Path) -> None:
    told: list[tuple[int, int, tuple[str, ...]]] = []

    def noted(module: nn.Module, work: LocalWork) -> None:
        told.append((work.first, work.steps, work.sends))
        assert module.training
        assert work.sends
        assert set(work.sends) <= {name for name, _ in module.named_parameters()}

    changes = {**ONE, "averaging.interval": 4, "averaging.parts": 2, "training.steps": 5,
               "averaging.partition": "blocks"}  # fmt: skip
    list(server(federation(tmp_path, changes, local_steps=noted)))
    assert [(first, steps) for first, steps, _ in told] == [(1, 2), (3, 2), (5, 1)]
    assert told[0][2] != told[1][2]
    assert len(told[2][2]) == 6, "at the end the whole model"


def test_memory_that_is_replaced_is_taken_over(tmp_path: Path) -> None:
    def replaced(module: nn.Module, work: LocalWork) -> None:
        for parameter in module.parameters():
            parameter.data = torch.full_like(parameter, 2.0)

    run = server(federation(tmp_path, {**ONE, "training.steps": 4}, local_steps=replaced))
    list(run)
    assert bool((run.server.mirror.params == 2).all())


@pytest.mark.parametrize(
    ("solver", "name"),
    [
        ("fedprox", "FedProx"),
        ("scaffold", "SCAFFOLD"),
        ("fednova", "FedNova"),
        ("vrl_sgd", "VRLSGD"),
    ],
)
def test_solvers_that_have_a_say_in_steps_are_refused(
    tmp_path: Path, solver: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = federation(tmp_path, {**QUICK, "solver.name": solver}, local_steps=own_sgd)
    with pytest.raises(RuntimeError, match="0 of 3 clients came"):
        list(server(grid))
    assert f"solver {name} changes local steps, or must know them" in caplog.text


def test_a_state_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    def keeps(module: nn.Module, work: LocalWork) -> None:
        work.state["best"] = {"of": [object()]}

    grid = federation(tmp_path, {**QUICK, "training.steps": 4}, local_steps=keeps)
    with pytest.raises(
        RuntimeError, match=r"state\['best'\]\['of'\]\[0\] is a object, which is not"
    ):
        list(server(grid))


def replaces(module: nn.Module, work: LocalWork) -> None:
    module.get_submodule("3").weight = nn.Parameter(torch.zeros(2, 8, dtype=torch.float64))


def replaces_a_layer(module: nn.Module, work: LocalWork) -> None:
    module.set_submodule("3", nn.Linear(8, 2).double())


def adds(module: nn.Module, work: LocalWork) -> None:
    module.adapter = nn.Parameter(torch.zeros(3))  # type: ignore[assignment]


def takes_away(module: nn.Module, work: LocalWork) -> None:
    del module.get_submodule("0").bias


def reshapes(module: nn.Module, work: LocalWork) -> None:
    weight: nn.Parameter = module.get_parameter("3.bias")
    weight.data = torch.zeros(1, dtype=torch.float64)


def rounds(module: nn.Module, work: LocalWork) -> None:
    module.half()


def moves(module: nn.Module, work: LocalWork) -> None:
    module.to("meta")


def reshapes_a_buffer(module: nn.Module, work: LocalWork) -> None:
    module.get_submodule("1").running_mean = torch.zeros(1, dtype=torch.float64)


def takes_a_buffer_away(module: nn.Module, work: LocalWork) -> None:
    del module.get_submodule("1").running_var


def diverges(module: nn.Module, work: LocalWork) -> None:
    module.get_parameter("0.weight").data[0, 0] = torch.nan


def diverges_in_a_buffer(module: nn.Module, work: LocalWork) -> None:
    module.get_buffer("1.running_var").fill_(torch.inf)


def returns_a_pair(module: nn.Module, work: LocalWork) -> Any:
    return 0.5, 3


def returns_a_row(module: nn.Module, work: LocalWork) -> Any:
    return torch.zeros(4)


def fails(module: nn.Module, work: LocalWork) -> None:
    raise RuntimeError("out of beans")


WRONG: dict[str, tuple[Any, str]] = {
    "replaces a parameter": (replaces, "replaced the parameter '3.weight': train the module in"),
    "replaces a layer": (replaces_a_layer, "replaced the parameter '3.weight'"),
    "adds a parameter": (adds, "gave the module the parameter 'adapter', which nobody averages"),
    "takes a parameter away": (takes_away, "took away the parameter '0.bias'"),
    "gives one another shape": (reshapes, "left '3.bias' as float64[1] on cpu, not float64[2] on"),
    "gives all another type": (rounds, "left '0.weight' as float16[8, 6] on cpu, not float64[8"),
    "moves it to another device": (moves, "replaced the parameter '0.weight'"),
    "gives a buffer another shape": (reshapes_a_buffer, "left '1.running_mean' as float64[1] on"),
    "takes a buffer away": (takes_a_buffer_away, "took away the buffer '1.running_var'"),
    "leaves NaN": (diverges, "left numbers in '0.weight' that are not finite, and the model of"),
    "leaves an infinite buffer": (diverges_in_a_buffer, "left numbers in '1.running_var' that are"),
    "returns two numbers": (returns_a_pair, "returned tuple: return the mean loss of its steps"),
    "returns a tensor of four": (returns_a_row, "returned Tensor: return the mean loss of its"),
    "raises an error": (fails, "out of beans"),
}


@pytest.mark.parametrize("what", WRONG)
@fault("An app's own training loop (local_steps)", "{what}", what=WRONG)
def test_a_loop_that_does_more_than_train(tmp_path: Path, what: str) -> str:
    """In one message of one client: it is left out, keeps what it had, and takes part again."""
    wrong, sentence = WRONG[what]
    calls: list[int] = []

    def sometimes(module: nn.Module, work: LocalWork) -> Any:
        calls.append(work.first)
        return wrong(module, work) if len(calls) == 5 else own_sgd(module, work)

    changes = {**QUICK, **PERIODIC, "averaging.interval": 1, "training.steps": 4}
    run = server(federation(tmp_path, changes, local_steps=sometimes))
    rows = list(run)
    (away,) = rows[1]["away"].items()
    assert away[0] == "1"
    assert sentence in away[1]
    assert len(away[1]) < 260
    assert [len(row["clients"]) for row in rows] == [3, 2, 3, 3, 3]
    assert run.model().state_dict()["0.weight"].isfinite().all()
    return f"left out of that average, with the model of before: “{away[1]}”"


def test_a_loop_that_trains_what_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = f.model

    def model() -> nn.Module:
        made = whole()
        made.get_submodule("0").requires_grad_(False)
        return made

    def thaws(module: nn.Module, work: LocalWork) -> None:
        module.requires_grad_(True)

    monkeypatch.setattr(f, "model", model)
    grid = federation(tmp_path, {**QUICK, "training.steps": 4}, local_steps=thaws)
    with pytest.raises(
        RuntimeError, match=r"trains the parameter '0.weight', which model\(\) froze"
    ):
        list(server(grid))


def test_nothing_is_left_in_the_module(tmp_path: Path) -> None:
    """Whether the next message comes to the same process or to a new one."""
    seen = []

    def untidy(module: nn.Module, work: LocalWork) -> None:
        hooks = module.get_submodule("0")._forward_hooks
        flags = [p.requires_grad for p in module.parameters()]
        seen.append((module.training, len(hooks), hasattr(module, "mine"), all(flags)))
        module.get_submodule("0").register_forward_hook(lambda *given: None)
        module.mine = work.state  # type: ignore[assignment]
        module.requires_grad_(False).eval()

    list(server(federation(tmp_path, {**ONE, "training.steps": 8}, local_steps=untidy)))
    assert seen == 2 * [(True, 0, False, True)]


class Batches:
    """An iterable of batches that says how many samples it is of."""

    samples = 10

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x.split(4), self.y.split(4), strict=True))


class Noisy(Dataset[Any]):
    """Another sample every time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return self.x[place] + 0.1 * torch.randn(6, dtype=torch.float64), self.y[place]


class Lines(IterableDataset[Any]):
    """Sample after sample."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x, self.y, strict=True))

    def __len__(self) -> int:
        return len(self.x)


LOADERS: dict[str, Any] = {
    "shuffled": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True),
    "a generator of its own": lambda x, y: DataLoader(
        TensorDataset(x, y), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(7)
    ),
    "random samples": lambda x, y: DataLoader(Noisy(x, y), batch_size=4, shuffle=True),
    "a stream": lambda x, y: DataLoader(Lines(x, y), batch_size=4),
    "batches": Batches,
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_place_in_the_data_is_kept(tmp_path: Path, kind: str) -> None:
    """In one message, in many, and in many with a kill after each: the same model."""
    ends = []
    for name, interval, killed in (("one", 12, False), ("many", 2, False), ("killed", 2, True)):
        changes = {**ONE, "averaging.interval": interval, "training.steps": 12}
        step = 0
        while step < 12:
            grid = federation(tmp_path / name, changes)
            grid._app = f.client_app(f.model, f.F.cross_entropy, lambda c: LOADERS[kind](*owned(c)))
            run = server(grid, **{"flower.resume": True})
            for row in run:
                step = row["step"]
                if killed and row["stage"] != "end":
                    break
                step += row["stage"] == "end"
        ends.append(run.model())
    assert_equal(*ends[:2])
    assert_equal(*ends[1:])


def view(**changes: Any) -> View:
    known = {"client": 0, "batch": 4, "seed": 0, "device": torch.device("cpu"),
             "dtype": torch.float64, "transform": None}  # fmt: skip
    return View(**{**known, **changes})


def drawn(feed: Feed, batches: int) -> list[list[float]]:
    return [feed(step).inputs[0, :, 0].tolist() for step in range(1, batches + 1)]  # type: ignore[call-overload]


def test_each_pass_has_all_samples_in_an_order_of_its_own() -> None:
    x, y = owned(type("Node", (), {"node_config": {"partition-id": 0}})())  # type: ignore[arg-type]
    feed = feed_of(LOADERS["shuffled"](x, y), view())
    assert feed.samples == 10
    seen = drawn(feed, 6)
    assert [len(batch) for batch in seen] == [4, 4, 2] * 2
    first, second = [*chain(*seen[:3])], [*chain(*seen[3:])]
    assert sorted(first) == sorted(second) == sorted(x[:, 0].tolist())
    assert first != second
    assert feed.place == {"pass": 1, "batch": 3}
    other = feed_of(LOADERS["shuffled"](x, y), view(client=1))
    assert drawn(other, 6) != seen


def test_only_the_batches_that_are_wanted_are_read() -> None:
    """A client in the middle of a long pass does not read what came before."""
    read: list[int] = []

    class Counted(Dataset[Any]):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, place: int) -> Any:
            read.append(place)
            return torch.zeros(2), 0

    feed = feed_of(DataLoader(Counted(), batch_size=10), view(dtype=torch.float32))
    feed.place["batch"] = 90
    feed(1)
    assert read == list(range(900, 910))


def test_samples_of_any_kind_are_drawn_alike() -> None:
    x, y = torch.randn(9, 3), torch.randint(0, 2, (9,))
    kinds: list[Any] = [(x, y), TensorDataset(x, y), {"x": x, "label": y}, (x.numpy(), y.numpy())]
    feeds = [feed_of(kind, view(dtype=torch.float32)) for kind in kinds]
    assert all(drawn(feed, 5) == drawn(feeds[0], 5) for feed in feeds)
    assert {feed.samples for feed in feeds} == {9}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ((torch.zeros(3, 1), torch.zeros(2)), "differ in length"),
        ((torch.zeros(0, 1), torch.zeros(0)), "there are no samples"),
        (Lines(torch.zeros(1), torch.zeros(1)), "return a DataLoader of it"),
        ((batch for batch in ()), "a generator does not say how many samples"),
        ("text", "samples cannot be a str"),
    ],
)
def test_what_is_no_data_is_refused(data: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        feed_of(data, view())


def test_a_loader_that_is_used_up_is_named() -> None:
    class Once:
        samples = 4

        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(ValueError, match="gave no batch in pass 1: return a DataLoader"):
        feed_of(Once(), view())(1)


def test_shuffles_are_the_runs_own() -> None:
    """Nothing is left behind in torch's generator."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    drawn(feed_of(LOADERS["random samples"](torch.zeros(9, 6), torch.zeros(9).long()), view()), 7)
    assert torch.equal(before, torch.get_rng_state())
    assert fold(0, "data", 0, "pass", 0) != fold(0, "data", 1, "pass", 0)
