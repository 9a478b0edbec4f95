"""What is described alike computes alike; what cannot be described with certainty says so."""

import builtins
import math
from collections.abc import Callable
from functools import partial, partialmethod, reduce, wraps
from types import FunctionType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from partavg.engines.described import Unsure, described
from partavg.losses import cross_entropy, next_token
from partavg.models import MODELS

SCALE = 2.0
COUNTS = [0]
add = COUNTS.append
PLACE = object()


def halved(x: Tensor) -> Tensor:
    return x / SCALE


class Net(nn.Module):
    """A user's own, with what such models have."""

    power: float = 2.0

    def __init__(self, width: int = 3, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.layer = nn.Linear(5, width)
        self.activation = activation
        self.kinds = {"a", "b"}
        self.register_buffer("shift", torch.zeros(width))

    @property
    def root(self) -> float:
        return math.sqrt(self.power)

    def forward(self, x: Tensor) -> Tensor:
        return halved(self.activation(self.layer(x))) * self.root + self.shift


def executed(source: str) -> Any:
    """The class of a module of its own."""
    found: dict[str, Any] = {"__name__": "mine", "torch": torch, "nn": nn, "F": F, "k": 1}
    exec(source, found)
    return found["Mine"]()


FORWARD = """
def twice(x):
    return 2 * x

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
    def forward(self, x):
        return twice(self.layer(x)) + k
"""


@pytest.mark.parametrize("name", ["resnet20", "cnn", "dropout_cnn", "wrn16_8"])
def test_a_model_is_described_alike_each_time(name: str) -> None:
    one, other = (described(MODELS[name]((3, 16, 16), 10)) for _ in range(2))
    assert one == other != described(MODELS[name]((3, 16, 16), 11))


def test_our_models_of_texts_can_be_described() -> None:
    assert described(MODELS["gpt"]((8,), 9)) == described(MODELS["gpt"]((8,), 9))
    assert described(MODELS["lstm"]((8,), 9)) != described(MODELS["lstm"]((8,), 9, dropout=0.1))


def test_numbers_of_tensors_do_not_count_but_all_else_does() -> None:
    one = described(Net())
    assert one == described(Net())
    others = [
        Net(4),
        Net().double(),
        Net().eval(),
        Net(activation=F.relu),
        Net(activation=halved),
    ]
    others[-1].layer = nn.Linear(5, 3, bias=False)
    frozen, kinds, named, added, none, noted = (Net() for _ in range(6))
    frozen.layer.weight.requires_grad_(False)
    kinds.kinds = {"a", "c"}
    named.register_buffer("shift", torch.zeros(3), persistent=False)
    added.more = nn.ReLU()
    none.register_parameter("more", None)
    noted.shift.is_fixed = True
    found = {described(net) for net in (*others, frozen, kinds, named, added, none, noted)}
    assert len(found) == 11
    assert one not in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ k", "- k"),
        ("+ k", "+ k * 1.5"),
        ("2 * x", "3 * x"),
        ("return 2", "x = x.relu()\n    return 2"),
        ("nn.Linear(2, 2)", "nn.Linear(2, 2, bias=False)"),
        ("def forward(self, x)", "def forward(self, x, y=1)"),
        ("class Mine(nn.Module):", "class Mine(nn.Module):\n    more = 1"),
        ("class Mine(nn.Module):", "class Mine(nn.Module):\n    __more__ = 1"),
    ],
)
def test_code_counts_to_the_letter(old: str, new: str) -> None:
    assert described(executed(FORWARD)) == described(executed(FORWARD))
    assert described(executed("\n\n# elsewhere" + FORWARD)) == described(executed(FORWARD))
    assert described(executed(FORWARD)) != described(executed(FORWARD.replace(old, new)))


def test_what_a_function_finds_outside_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = described(Net())
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3.0)
        assert described(Net()) != before
    with monkeypatch.context() as patch:
        patch.setattr(Net, "power", 3.0)
        assert described(Net()) != before
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight))
        assert described(Net()) != before
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", partialmethod(halved))
        with pytest.raises(Unsure):
            described(Net())
    assert described(Net()) == before


def rounded(x: Tensor) -> Tensor:
    return x * round(SCALE)


def test_what_python_and_torch_have_built_in_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = described(F.dropout), described(rounded)
    monkeypatch.setattr(F.dropout, "__defaults__", (0.9, True, False))
    monkeypatch.setattr(builtins, "round", halved)
    assert described(F.dropout) != before[0]
    assert described(rounded) != before[1]


def test_sets_lie_in_any_order_but_one_is_said() -> None:
    """In a set functions lie by their addresses, and each is described where it is met first."""
    copies: list[FunctionType] = []

    def taking(which: int) -> str:
        both = [FunctionType(f.__code__, globals(), f.__name__) for f in (halved, rounded)]
        copies.extend(both)  # the next ones are elsewhere
        net = Net()
        net.kinds, net.more = set(both), both[which]
        return described(net)

    one, other = ({taking(which) for _ in range(32)} for which in (0, 1))
    assert one.isdisjoint(other)


def test_shared_layers_and_tensors_are_told_from_equal_ones() -> None:
    layer = nn.Linear(3, 3)
    shared, apart = nn.Sequential(layer, layer), nn.Sequential(layer, nn.Linear(3, 3))
    tied = nn.Sequential(layer, nn.Linear(3, 3))
    tied[1].weight = layer.weight
    assert len({described(net) for net in (shared, apart, tied)}) == 3


def test_losses_and_their_options() -> None:
    losses = [
        F.cross_entropy,
        cross_entropy,
        next_token,
        partial(cross_entropy, label_smoothing=0.1),
        partial(cross_entropy, label_smoothing=0.2),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
    ]
    assert len(set(map(described, losses))) == len(losses)
    assert described(partial(cross_entropy, label_smoothing=0.1)) == described(losses[3])


def with_forward(forward: Callable[..., Tensor]) -> nn.Module:
    class Own(nn.Module):
        pass

    Own.forward = forward
    return Own()


def counts(self: Any, x: Tensor) -> Tensor:
    COUNTS[0] += 1
    return x * COUNTS[0]


def changes(self: Any, x: Tensor) -> Tensor:
    global SCALE
    SCALE = 2.0
    return x


def appends(self: Any, x: Tensor) -> Tensor:
    return x * add(3)


def imports(self: Any, x: Tensor) -> Tensor:
    import os

    return x * len(os.environ)


def evaluates(self: Any, x: Tensor) -> Tensor:
    return eval("x")


def uses_an_object(self: Any, x: Tensor) -> Tensor:
    return x * (PLACE is None)


def uses_an_address(self: Any, x: Tensor) -> Tensor:
    return x * hash(self)


def uses_nothing_known(self: Any, x: Tensor) -> Tensor:
    return x * not_there  # type: ignore[name-defined]


def closing(factor: float) -> Callable[..., Tensor]:
    def closes(self: Any, x: Tensor) -> Tensor:
        return factor * x

    return closes


def posing_as_torch(x: float) -> Any:
    """A wrapper that says it is what it wraps."""

    @wraps(F.relu)
    def relu(*args: Any, **options: Any) -> Tensor:
        return x * F.relu(*args, **options)

    return Net(activation=relu)


def hooked() -> nn.Module:
    net = Net()
    net.layer.register_forward_hook(lambda *_: None)
    return net


class Scaled(nn.Parameter):
    """A tensor that may do anything."""


def with_a_tensor_of_its_own() -> nn.Module:
    net = Net()
    net.layer.weight = Scaled(torch.ones(3, 5))
    return net


def keeping_in_its_class() -> nn.Module:
    class Own(nn.Module):
        found: ClassVar[list[int]] = []

    return Own()


def with_attribute(value: Any) -> nn.Module:
    net = Net()
    net.more = value
    return net


@pytest.mark.parametrize(
    "make",
    [
        *(
            partial(with_forward, forward)
            for forward in (
                *(counts, changes, imports, evaluates),
                *(uses_an_object, uses_an_address, uses_nothing_known),
            )
        ),
        partial(with_forward, appends),
        keeping_in_its_class,
        partial(with_forward, closing(2.0)),
        partial(with_forward, torch.no_grad()(closing(2.0))),
        partial(posing_as_torch, 2.0),
        hooked,
        lambda: parametrizations.weight_norm(nn.Linear(2, 2)),
        partial(with_attribute, torch.ones(2)),
        partial(with_attribute, PLACE),
        partial(with_attribute, Net().forward),
        partial(with_attribute, torch.Generator()),
        partial(with_attribute, torch.no_grad()(F.relu)),
        partial(with_attribute, slice(PLACE)),
        with_a_tensor_of_its_own,
        partial(with_attribute, reduce(lambda some, _: [some, some], range(40), [])),
    ],
)
def test_what_is_not_certain_is_not_described(make: Callable[[], nn.Module]) -> None:
    module = make()
    with pytest.raises(Unsure):
        described(module)
