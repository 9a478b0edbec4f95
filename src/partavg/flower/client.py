"""The client's half of an app: your model, your data, your loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from partavg.backends.flower import wire
from partavg.backends.flower.client import Client
from partavg.backends.flower.terms import Terms
from partavg.backends.flower.wire import Hello, Order
from partavg.backends.simulate import Augment
from partavg.core.loop import Batch
from partavg.data.batches import Batches
from partavg.engines.looped import Looped
from partavg.engines.model import Loss
from partavg.flower.memory import memory_of
from partavg.flower.settings import Settings

Data = Callable[[Context], tuple[Tensor, Tensor]]
"""The samples that a client owns: inputs and targets."""


def client_app(
    model: Callable[[], nn.Module],
    loss: Loss,
    data: Data,
    *,
    transform: Augment | None = None,
    share_loss: bool = False,
) -> ClientApp:
    """A Flower ClientApp that trains `model` on what `data` returns on this node.

    Parts of the model and the number of samples leave the client, and nothing else; the mean
    mini-batch loss too if `share_loss` is set. `transform` is that of `Simulation`.
    """
    app, agreed = ClientApp(), _Agreed(model, loss)

    def made(context: Context) -> Client:
        return _client(context, *agreed(context), data, transform, share_loss)

    @app.query("partavg")
    def hello(message: Message, context: Context) -> Message:
        client = made(context)
        answer = Hello(client.index, client.samples, client.terms.digest())
        return Message(wire.parcel(wire.REPLY, answer), reply_to=message)

    @app.train("partavg")
    def act(message: Message, context: Context) -> Message:
        client = made(context)
        order = wire.read(message.content, wire.ORDER, Order)
        length = client.length(order)
        brought = torch.empty(0)
        if length:
            brought = wire.unpack(message.content, length, client.terms.model.dtype)
        reply, array = client.act(order, brought)
        part = None if array is None else wire.pack(array)
        return Message(wire.parcel(wire.REPLY, reply, part), reply_to=message)

    return app


class _Agreed:
    """Settings and terms of a run, kept: a process may get many messages, of many clients."""

    def __init__(self, model: Callable[[], nn.Module], loss: Loss) -> None:
        self._model, self._loss = model, loss
        self._known: tuple[Any, Settings, Terms] | None = None

    def __call__(self, context: Context) -> tuple[Settings, Terms]:
        key = dict(context.run_config), _device(context)
        if self._known is None or self._known[0] != key:
            settings = Settings.read(context.run_config)
            self._known = key, settings, settings.terms(self._model, self._loss, key[1])
        return self._known[1:]


def _client(
    context: Context,
    settings: Settings,
    terms: Terms,
    data: Data,
    transform: Augment | None,
    share_loss: bool,
) -> Client:
    training = settings.config.training
    index = _index(context)
    device = _device(context)
    inputs, targets = data(context)
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(
            f"client {index} has {len(inputs)} inputs and {len(targets)} targets: return as many "
            f"of both, at least one"
        )
    # Streams are numbered by client; those of the others are never read.
    others = [torch.zeros(1, dtype=torch.long)] * index
    batches = Batches([*others, torch.arange(len(inputs))], training.batch, training.seed)
    me = np.array([index])

    def batch(step: int) -> Batch:
        indices, keys = batches(step, me)
        seen, keys = inputs[indices].to(device), keys.to(device)
        return Batch(
            transform(seen, keys) if transform else seen, targets[indices].to(device), keys
        )

    memory = memory_of(context, settings.flower.job)
    engine = Looped(terms.model)
    return Client(index, len(inputs), terms, engine, batch, settings.rate, memory, share_loss)


def _device(context: Context) -> torch.device:
    return torch.device(str(context.node_config.get("device", "cpu")))


def _index(context: Context) -> int:
    index = context.node_config.get("partition-id")
    if type(index) is not int or index < 0:
        raise ValueError(
            f"partition-id = {index!r} of this node is no number of a client: start the SuperNode "
            f"with --node-config 'partition-id=0 …', another number on each node"
        )
    return index
