"""An app's own training loop: it takes the steps, and its model is averaged like any other."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from partavg.core.abilities import abilities, name_of
from partavg.core.inputs import Inputs
from partavg.core.mean import only_averaging
from partavg.core.seeds import OTHERS, fold, seeded
from partavg.core.solver import Solver
from partavg.core.workers import Workers
from partavg.engines.model import Loss
from partavg.flower.feed import Feed
from partavg.flower.in_place import InPlace, check_finite, mean_loss
from partavg.flower.messages import Order
from partavg.flower.protocol import Agreement

OwnLoop = Callable[[nn.Module, "LocalWork"], Any]
"""Trains a module in place; may return its mean loss."""

_KEPT = (Tensor, bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What an app's own training loop is to do, and what it may use."""

    first: int
    """The first step to take, counted from 1 since the start of the run."""
    steps: int
    """How many to take."""
    sends: tuple[str, ...]
    """The names of the tensors of which some will be sent afterwards."""
    lr: Callable[[int], float]
    """The learning rate of each step, as the settings have it."""
    loss: Loss
    device: torch.device
    state: dict[str, Any]
    """Yours: what is in it is there again in the next message. Tensors, numbers, texts, lists and
    dicts of them, as an optimizer's `state_dict` is."""
    feed: Feed

    def batches(self) -> Iterator[tuple[Inputs, Inputs]]:
        """As many batches of the client's data as there are steps, from where it was last."""
        for step in range(self.first, self.first + self.steps):
            inputs, targets, _ = self.feed(step).one(0)
            yield inputs, targets


def check_only_averages(solver: Solver) -> None:
    """Raise a ValueError for a solver that has a say in local steps, which are not its own here."""
    if not abilities(only_averaging(solver)).plain:
        raise ValueError(
            f"solver {name_of(solver)} changes local steps, or must know them, and this app takes "
            f"its own (local_steps): use one that only averages, as sgd, or an outer step on top, "
            f"as fedadam"
        )


def train_(
    own_loop: OwnLoop,
    workers: Workers,
    agreement: Agreement,
    order: Order,
    feed: Feed,
    lr: Callable[[int], float],
    state: dict[str, Any],
    seed: int,
) -> float:
    """Let an app's own loop train a row in place; its loss, or NaN."""
    params, buffers, model = workers.params[0], workers.buffers[0], agreement.model
    steps = order.until - order.start
    if not steps:
        return float("nan")
    work = LocalWork(
        order.start + 1,
        steps,
        _sends(agreement, order),
        lr,
        model.criterion,
        params.device,
        state,
        feed,
    )
    model.renew()  # what the loop did to the module before is gone, as in a new process
    with (
        model.holding(params, buffers) as (module, parameters),
        seeded(fold(seed, "own loop", order.start), params.device, OTHERS),
        torch.enable_grad(),
    ):
        before = InPlace(module, model.buffers)
        try:
            loss = mean_loss(own_loop(module, work))
            before.check(module)
        finally:
            before.restore_()
        for parameter, view in zip(parameters, model.params.views(params).values(), strict=True):
            if parameter.data_ptr() != view.data_ptr():  # it was given other memory
                view.copy_(parameter.detach())
    check_finite({**model.params.views(params), **model.buffers.views(buffers)})
    for step in range(order.start + 1, order.until + 1):
        workers.taken += 1
        workers.count_(lr(step), 1, None)
    workers.step = order.until
    check_kept(state)
    return loss


def _sends(agreement: Agreement, order: Order) -> tuple[str, ...]:
    """The tensors that a part has columns of; all of them where a model is sent."""
    layout = agreement.model.params
    if order.send != "part":
        return layout.names
    spans = agreement.plan.partition.parts[order.due]
    places = zip(layout.names, layout.starts, layout.sizes, strict=True)
    return tuple(
        name for name, at, size in places if any(a < at + size and at < b for a, b in spans)
    )


def check_kept(state: object, where: str = "state") -> None:
    """Raise a ValueError for what cannot be kept between messages without trusting a file."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            if not isinstance(key, str | int):
                raise ValueError(f"{where} has the key {key!r}: use texts or whole numbers")
            check_kept(value, f"{where}[{key!r}]")
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            check_kept(value, f"{where}[{place}]")
    elif not isinstance(state, _KEPT):
        raise ValueError(
            f"{where} is a {type(state).__name__}, which is not kept between messages: use "
            f"tensors, numbers, texts, and lists and dicts of them"
        )
