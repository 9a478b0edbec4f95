"""A slow textbook twin of training with personal parameters: one client at a time, by name.

A slot holds a model that is shared, its momentum and statistics; a client holds what is its own.
Who trains puts the two together, takes a step by autograd, and takes them apart again.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from partavg.core.participation import Participation
from partavg.core.schedule import Schedule

Named = dict[str, Tensor]
Owner = Callable[[str], Tensor]
"""The part of each element of a tensor, by its name: as large as the tensor."""


@dataclass
class Holder:
    """Some tensors of a model: parameters, their momentum, and buffers."""

    params: Named
    momentum: Named
    buffers: Named

    def copy(self) -> "Holder":
        return Holder(*({k: v.clone() for k, v in some.items()} for some in self.all()))

    def all(self) -> tuple[Named, Named, Named]:
        return self.params, self.momentum, self.buffers

    def only(self, names: Collection[str], inside: bool) -> "Holder":
        """A copy of what is, or is not, among the names."""
        return Holder(
            *(
                {k: v.clone() for k, v in some.items() if (k in names) == inside}
                for some in self.all()
            )
        )


@dataclass
class Twin:
    """FedPer, FedBN and LG-FedAvg as papers write them, under any schedule."""

    module: nn.Module
    samples: tuple[Tensor, Tensor]
    local: Collection[str]
    """The names of what is each client's own."""
    clients: int
    schedule: Schedule
    owner: Owner
    rho: float = 0.0
    lr: float = 0.1
    delay: int = 0
    participation: Participation | None = None
    average_buffers: bool = True
    slots: list[Holder] = field(default_factory=list)
    own: list[Holder] = field(default_factory=list)
    away: list[Holder] = field(default_factory=list)
    """What is not local of each client's model, where clients keep it (redistribution none)."""
    pending: list[tuple[int, int, Named, list[Named]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        params = {k: p.detach().clone() for k, p in self.module.named_parameters()}
        start = Holder(
            params,
            {k: torch.zeros_like(p) for k, p in params.items()},
            {k: b.clone() for k, b in self.module.named_buffers()},
        )
        active = self.participation.active if self.participation else self.clients
        self.slots = [start.only(self.local, False) for _ in range(active)]
        self.own = [start.only(self.local, True) for _ in range(self.clients)]
        self.away = [start.only(self.local, False) for _ in range(self.clients)]

    def who(self, k: int) -> list[int]:
        return list(self.participation(k)) if self.participation else list(range(self.clients))

    def train(self, batch: Callable[[int, int], Tensor], K: int) -> Iterator[int]:
        """`batch(k, client)` are indices of samples."""
        for k in range(1, K + 1):
            if self.participation and self.participation.changes(k):
                self.redistribute(k)
            for slot, client in zip(self.slots, self.who(k), strict=True):
                self.step(slot, self.own[client], batch(k, client))
            for j in self.schedule(k):
                self.send(k, j)
            self.arrive(k)
            yield k

    def step(self, slot: Holder, own: Holder, indices: Tensor) -> None:
        params = {k: v.clone().requires_grad_() for k, v in {**slot.params, **own.params}.items()}
        buffers = {k: v.clone() for k, v in {**slot.buffers, **own.buffers}.items()}
        self.module.train()
        x, y = self.samples
        loss = F.cross_entropy(
            functional_call(self.module, {**params, **buffers}, (x[indices],)), y[indices]
        )
        grads = torch.autograd.grad(loss, list(params.values()))
        for (name, p), g in zip(params.items(), grads, strict=True):
            holder = own if name in own.params else slot
            v = holder.momentum[name] = self.rho * holder.momentum[name] + g
            holder.params[name] = p.detach() - self.lr * v
        for name, b in buffers.items():
            (own if name in own.buffers else slot).buffers[name] = b.detach()

    def tensors(self, slot: Holder) -> Named:
        """What is averaged of a slot: views that can be written to."""
        kept = slot.buffers if self.average_buffers else {}
        return {**slot.params, **kept}

    def send(self, k: int, j: int) -> None:
        models = [self.tensors(slot) for slot in self.slots]
        mean = {name: sum(m[name].double() for m in models) / len(models) for name in models[0]}
        sent = [{name: t.clone() for name, t in m.items()} for m in models]
        self.pending.append((k + self.delay, j, mean, sent))

    def arrive(self, k: int | None) -> None:
        """x ← u + (x now − x when it was sent), for the part that arrives; None is all."""
        for message in list(self.pending):
            at, j, mean, sent = message
            if k is not None and at > k:
                continue
            self.pending.remove(message)
            for slot, before in zip(self.slots, sent, strict=True):
                for name, now in self.tensors(slot).items():
                    due = self.owner(name) == j
                    moved = mean[name] + (now - before[name]).double()
                    if not now.is_floating_point():
                        moved = moved.round().to(now.dtype)
                    now[due] = moved[due]

    def redistribute(self, k: int) -> None:
        who = self.participation
        assert who
        self.arrive(None)
        if who.redistribution == "average":
            for name in self.tensors(self.slots[0]):
                rows = [self.tensors(slot)[name] for slot in self.slots]
                mean = sum(row.double() for row in rows) / len(rows)
                for row in rows:
                    row.copy_(mean if row.is_floating_point() else mean.round())
        if who.redistribution == "none":
            for slot, client in zip(self.slots, self.who(k - 1), strict=True):
                self.away[client] = slot
            self.slots = [self.away[client] for client in self.who(k)]

    def model_of(self, client: int) -> Named:
        """A client's own model: the average of what is shared, and what is its own."""
        mean = {
            name: sum(slot.params[name] for slot in self.slots) / len(self.slots)
            for name in self.slots[0].params
        }
        for name in self.slots[0].buffers:
            rows = [slot.buffers[name] for slot in self.slots]
            center = sum(row.double() for row in rows) / len(rows)
            mean[name] = center if rows[0].is_floating_point() else center.round().to(rows[0].dtype)
        return {**mean, **self.own[client].params, **self.own[client].buffers}

    def evaluate(self, client: int, samples: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Loss and accuracy of a client's own model."""
        self.module.eval()
        x, y = samples
        outputs = functional_call(self.module, self.model_of(client), (x,))
        right = (outputs.argmax(1) == y).double().mean()
        return float(F.cross_entropy(outputs, y)), float(right)
