"""Clients' own models on their own samples: all at once is each by itself."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from partavg import Schedule, Simulation, iid
from partavg.backends import client_models
from partavg.backends.client_models import evaluate_each
from partavg.data.samples import Samples
from partavg.evaluation import evaluate
from partavg.scores.mean_loss import MeanLoss

CLIENTS = 7


def samples(count: int = 90) -> Samples:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=generator).double()
    return Samples(x, (x.sum(1) > 0).long())


def split(count: int = 90) -> list[Tensor]:
    """From none to many."""
    sizes = [0, 1, 2, 7, 7, 30]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(2))
    return list(torch.split(order, [*sizes, count - sum(sizes)]))


class Choosing(nn.Linear):
    """What vmap cannot do: look at the numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(self.weight.sum() > -1e9) else -x)


class OfTheBatch(nn.Linear):
    """Which sees the whole batch: other samples in it would matter."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Several(nn.Linear):
    """Whose outputs are no tensor."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


def network(middle: type[nn.Linear]) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), middle(6, 2)).double()
    net(samples()[0])  # the statistics are no longer those of the start
    return net.eval().requires_grad_(False)


def own(net: nn.Module, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors that differ between clients."""
    torch.manual_seed(1)
    state = net.state_dict()
    return {name: state[name] + torch.rand(CLIENTS, *state[name].shape) for name in names}


LOCALS = {"nothing": (), "head": ("3.weight", "3.bias"), "norm": ("1.weight", "1.running_mean")}


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("middle", [nn.Linear, Choosing, OfTheBatch])
@pytest.mark.parametrize("most", [10, 2000])
def test_together_is_one_by_one(middle: type[nn.Linear], local: str, most: int) -> None:
    net = network(middle)
    mine = own(net, LOCALS[local])
    x, y = samples()
    with patch.object(client_models, "_SAMPLES", most):
        found = evaluate_each(
            net, mine, MeanLoss(F.cross_entropy), Samples(x, y), split(), lambda x: 2 * x
        )
    for client, indices in enumerate(split()):
        if not len(indices):
            assert found[client] is None
            continue
        chosen = {name: tensor[client] for name, tensor in mine.items()}
        outputs = functional_call(net, chosen, (2 * x[indices],))
        loss = F.cross_entropy(outputs, y[indices])
        accuracy = (outputs.argmax(1) == y[indices]).double().mean()
        judged = found[client]
        assert judged is not None
        assert judged.loss == pytest.approx(float(loss), abs=1e-12)
        assert judged.accuracy == pytest.approx(float(accuracy))


@pytest.mark.parametrize("local", ["nothing", "head"])
def test_few_passes_are_enough(local: str) -> None:
    net = network(nn.Linear)
    passes = []
    net[0].register_forward_hook(lambda *_: passes.append(1))
    evaluate_each(net, own(net, LOCALS[local]), MeanLoss(F.cross_entropy), samples(), split())
    assert len(passes) == 2, "all clients, and one alone to compare"


def test_outputs_of_any_kind() -> None:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[0][:, 0], targets.double())

    net, (x, y) = network(Several), samples()
    found = evaluate_each(net, {}, MeanLoss(loss), Samples(x, y), split())
    for each, indices in zip(found, split(), strict=True):
        if each is not None:
            assert each.loss == pytest.approx(float(loss(net(x[indices]), y[indices])))
            assert each.accuracy is None


def test_without_local_parameters_it_is_the_averaged_model() -> None:
    x, y = samples()
    made = Simulation(
        network(nn.Linear).train().requires_grad_(), F.cross_entropy, (x, y), iid(y, CLIENTS, 0),
        schedule=Schedule.partial(3), lr=0.1, batch=4, buffers="recompute",
    )  # fmt: skip
    for _ in made.train(7):
        pass
    u = made.consensus()
    for found, indices in zip(made.evaluate_clients((x, y), split()), split(), strict=True):
        if found is not None:
            wanted = evaluate(u, F.cross_entropy, (x[indices], y[indices]))
            assert found.loss == pytest.approx(wanted.loss)
            assert found.accuracy == pytest.approx(wanted.accuracy)


def test_a_split_of_others_is_refused() -> None:
    x, y = samples()
    made = Simulation(
        nn.Linear(5, 2).double(), F.cross_entropy, (x, y), iid(y, CLIENTS, 0),
        schedule=Schedule.partial(3), lr=0.1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="the split is for 2 workers, not 7"):
        made.evaluate_clients((x, y), split()[:2])
    for wrong in (torch.tensor([90]), torch.tensor([-1]), torch.ones(3), torch.ones(1, 1).long()):
        with pytest.raises(ValueError, match="the split: worker 1 owns"):
            made.evaluate_clients((x, y), [split()[1], wrong, *split()[2:]])
