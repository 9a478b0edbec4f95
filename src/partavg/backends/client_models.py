"""Each client's own model on its own samples: many clients in one pass, where that can be."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from partavg.core.bank import Bank
from partavg.core.inputs import Inputs, call, each
from partavg.core.layout import Layout
from partavg.core.local_columns import joined
from partavg.core.plan import Plan
from partavg.core.workers import Workers
from partavg.data.samples import Samples
from partavg.engines.model import RowModel
from partavg.evaluation import ACCURACY, Evaluation, Transform, count, unchanged
from partavg.scores.mean_loss import MeanLoss
from partavg.scores.score import Score

_SAMPLES = 2000  # in one pass


def own_tensors(model: RowModel, rows: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Rows of all clients' own columns as named tensors, of the types that the model has."""
    views = layout.views(rows) if layout.names else {}
    return {name: model.native(name, view) for name, view in views.items()}


def own_columns(workers: Workers, plan: Plan, name: str) -> Tensor:
    """The local columns of the clients whose home is here, wherever these are active now."""
    who, spans = plan.participation, plan.local.of(name)
    rows = joined(getattr(workers, name), spans)
    if who is None or not spans or not workers.bank:
        return rows
    own = workers.bank.get(f"local.{name}")
    kept = joined(workers.bank[name].whole(), spans) if own is None else own.whole()
    active = torch.tensor(who(max(1, workers.step)))
    plan.swap(rows, Bank.of(kept), active, active)
    return kept


@torch.no_grad()
def evaluate_each(
    module: nn.Module,
    own: Mapping[str, Tensor],
    loss: MeanLoss,
    samples: Samples,
    split: Sequence[Int[Tensor, "_"]],
    transform: Transform = unchanged,
    scores: Sequence[Score] = (ACCURACY,),
) -> list[Evaluation | None]:
    """Evaluate a module with each client's `own` tensors [clients, …] on that client's samples.

    Clients of about as many samples go together: through one pass if nothing is their own, under
    `vmap` else, where what is not their own is computed as one batch. A module that gives other
    outputs then than by itself is evaluated client by client.
    """
    device = next(module.parameters()).device
    task = _Clients(module.eval(), own, loss, samples, split, transform, scores, device)
    found: list[Evaluation | None] = [None] * len(split)
    together = True
    for clients in _groups([len(samples) for samples in split]):
        outputs = task.outputs(clients) if together else None
        together = outputs is not None
        for place, client in enumerate(clients):
            found[client] = (
                task.alone(client) if outputs is None else task.judged(client, outputs[place])
            )
    return found


def _groups(counts: Sequence[int]) -> Iterator[list[int]]:
    """Clients that have samples, the fewest first, as many as go into one pass when filled up."""
    group: list[int] = []
    for client in sorted(range(len(counts)), key=lambda client: counts[client]):
        if group and counts[client] * (len(group) + 1) > _SAMPLES:
            yield group
            group = []
        if counts[client]:
            group.append(client)
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Clients:
    module: nn.Module
    own: Mapping[str, Tensor]
    loss: MeanLoss
    samples: Samples
    split: Sequence[Tensor]
    transform: Transform
    scores: Sequence[Score]
    device: torch.device

    def alone(self, client: int) -> Evaluation:
        """Evaluate a client by itself."""
        samples = Samples(self._inputs(self.split[client]), self._targets(client))
        return self._evaluated(self._model(client), samples, self.transform)

    def judged(self, client: int, outputs: Tensor) -> Evaluation:
        """Evaluate outputs that are known."""
        return self._evaluated(nn.Identity(), Samples(outputs, self._targets(client)), unchanged)

    def _evaluated(self, module: nn.Module, samples: Samples, transform: Transform) -> Evaluation:
        return count(module, self.loss, samples, transform, self.scores).evaluation(self.scores)

    def outputs(self, clients: Sequence[int]) -> list[Tensor] | None:
        """The outputs of some clients' models, in one pass; None if they must not be made so."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # vmap warns where it would be slow
                found = self._mapped(clients) if self.own else self._joined(clients)
                place = self._told_by(clients)
                inputs = self._inputs(self.split[clients[place]])
                single = call(self._model(clients[place]), self.transform(inputs))
        except Exception:  # the same error comes, and is shown, where a client is evaluated alone
            return None
        alike = isinstance(single, Tensor) and single.shape == found[place].shape
        return found if alike and _close(single, found[place]) else None

    def _told_by(self, clients: Sequence[int]) -> int:
        """Which client's outputs would change if they depended on what else is in a batch."""
        most = len(self.split[clients[-1]])
        uneven = [place for place, client in enumerate(clients) if most % len(self.split[client])]
        return uneven[-1] if uneven else 0

    def _joined(self, clients: Sequence[int]) -> list[Tensor]:
        """One model on the samples of all."""
        counts = [len(self.split[client]) for client in clients]
        inputs = self._inputs(torch.cat([self.split[client] for client in clients]))
        outputs: Tensor = call(self.module, self.transform(inputs))
        return list(torch.split(outputs, counts))

    def _mapped(self, clients: Sequence[int]) -> list[Tensor]:
        """Models that differ in what is their own; samples are repeated where others have more."""
        counts = [len(self.split[client]) for client in clients]
        wanted = torch.arange(max(counts))
        chosen = [self.split[client].cpu()[wanted % len(self.split[client])] for client in clients]
        seen = self.transform(self._inputs(torch.cat(chosen)))
        inputs = each(lambda t: t.view(len(clients), max(counts), *t.shape[1:]), seen)
        own = {name: self._sent(tensor[list(clients)]) for name, tensor in self.own.items()}
        outputs: Tensor = vmap(self._output)(own, inputs)
        return [rows[:n] for rows, n in zip(outputs, counts, strict=True)]

    def _output(self, own: dict[str, Tensor], inputs: Inputs) -> Any:
        return call(_With(self.module, own), inputs)

    def _model(self, client: int) -> nn.Module:
        own = {name: self._sent(tensor[client]) for name, tensor in self.own.items()}
        return _With(self.module, own)

    def _inputs(self, indices: Tensor) -> Any:
        return each(
            lambda tensor: self._sent(tensor[indices.to(tensor.device)]), self.samples.inputs
        )

    def _targets(self, client: int) -> Inputs:
        own = self.split[client]
        return each(lambda tensor: self._sent(tensor[own.to(tensor.device)]), self.samples.targets)

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)


class _With(nn.Module):
    """A module with other tensors in the place of some of its own."""

    def __init__(self, module: nn.Module, own: dict[str, Tensor]) -> None:
        super().__init__()
        self._with = [module], own  # in a list, or it would be a part of this one

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (module,), own = self._with
        return functional_call(module, own, args, kwargs)


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether outputs are the same but for rounding."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    slack = torch.finfo(one.dtype).eps ** 0.5
    return torch.allclose(one, other, slack, slack * float(one.abs().max()), equal_nan=True)
