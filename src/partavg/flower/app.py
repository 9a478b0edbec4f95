"""The two halves of an app: the client's, with your data, and the server's."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from partavg.backends.simulate import Augment
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.data.convert import as_samples
from partavg.engines.looped import Looped
from partavg.engines.model import Loss
from partavg.evaluation import Transform, unchanged
from partavg.flower.client import Client
from partavg.flower.examiner import Examiner
from partavg.flower.feed import Feed, View, feed_of
from partavg.flower.identity import KEY, Signer, fingerprint
from partavg.flower.memory import memory_of
from partavg.flower.own_loop import OwnLoop, check_only_averages
from partavg.flower.protocol import Agreement
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings
from partavg.flower.transport import Transport
from partavg.scores.mean_loss import MeanLoss
from partavg.session import Stop
from partavg.sinks.sink import SinkLike

Data = Callable[[Context], Any]
"""What a client owns: a DataLoader or another iterable of batches, or samples as `as_samples` takes
them, which batches are drawn from."""

Test = Callable[[Context], Any]
"""The samples that a client measures models on, as `as_samples` takes them; None if it has none."""


def client_app(
    model: Callable[[], nn.Module],
    loss: Loss,
    data: Data,
    *,
    transform: Augment | None = None,
    share_loss: bool = False,
    test: Test | None = None,
    local_steps: OwnLoop | None = None,
) -> ClientApp:
    """A Flower ClientApp that trains `model` on what `data` returns on this node.

    Parts of the model and the number of samples leave the client, and nothing else; the mean
    mini-batch loss too if `share_loss` is set. `transform` is that of `Simulation`.

    `test` returns samples of this node to measure averaged models on, or None: sums and counts of
    the loss and of the metrics leave the client then. `local_steps(module, work)` is a training
    loop of your own, see `LocalWork`.
    """
    app = ClientApp()
    folder = _folder_of_caller()
    clients = _Clients(model, loss, data, transform, share_loss, test, local_steps, folder)

    @app.query("partavg")
    def introduce(message: Message, context: Context) -> Message:
        return Message(clients.of(context).introduce(message.content), reply_to=message)

    @app.train("partavg")
    def carry_out(message: Message, context: Context) -> Message:
        return Message(clients.of(context).carry_out(message.content), reply_to=message)

    return app


def server_app(
    model: Callable[[], nn.Module],
    loss: Loss,
    test: Callable[[], tuple[Tensor, Tensor]] | None = None,
    *,
    transform: Augment | None = None,
    aggregate: Aggregate = weighted_sum,
    sinks: Sequence[SinkLike] = (),
    stop: Stop | None = None,
) -> ServerApp:
    """A Flower ServerApp that averages parts of the clients' models.

    `test` returns samples to evaluate the averaged model on, if the server has any. `aggregate` is
    what it makes of the clients' messages, by default their weighted sum. `sinks` and `stop` are
    those of `partavg.follow`: functions of a row, sinks or names of some, and whether to end early.
    """
    app, folder = ServerApp(), _folder_of_caller()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = Settings.read(context.run_config, folder)
        agreement = settings.agreement(model, loss, torch.device("cpu"), aggregate)
        samples, seen = test() if test else None, _seen(transform)
        run = FederatedRun(
            settings, agreement, Transport(grid), samples, seen, sinks=sinks, stop=stop
        )
        for _ in run:
            pass

    return app


@dataclass(slots=True)
class _Clients:
    """Makes the client of a node for each message.

    What a run agreed on is kept: a process may get many messages, of many clients.
    """

    model: Callable[[], nn.Module]
    loss: Loss
    data: Data
    transform: Augment | None
    share_loss: bool
    test: Test | None
    local_steps: OwnLoop | None
    folder: Path
    _last_run: tuple[Any, Settings, Agreement] | None = None

    def of(self, context: Context) -> Client:
        """The client of the node that a context is of."""
        settings, agreement = self._agreed(context)
        if self.share_loss and agreement.plan.private:
            raise ValueError(
                "share_loss tells the server what privacy does not protect: leave it out of "
                "client_app, or privacy out of the run config"
            )
        index, device = _index(context), _device(context)
        training = settings.config.training
        view = View(
            index, training.batch, training.seed, device, agreement.model.dtype, self.transform
        )
        signer = _signer(context)
        node = fingerprint(signer.public) if signer else ""
        return Client(
            index=index,
            agreement=agreement,
            engine=Looped(agreement.model),
            feed=self._feed(context, view),
            lr=settings.rate,
            memory=memory_of(context, settings.flower.job, index, node),
            node=context.node_id,
            signer=signer,
            shares_loss=self.share_loss,
            examiner=partial(self._examiner, context, settings, agreement) if self.test else None,
            own_loop=self.local_steps,
            seed=training.seed,
        )

    def _feed(self, context: Context, view: View) -> Feed:
        try:
            return feed_of(self.data(context), view)
        except ValueError as error:
            raise ValueError(f"the data of client {view.client}: {error}") from error

    def _examiner(
        self, context: Context, settings: Settings, agreement: Agreement
    ) -> Examiner | None:
        given = self.test(context) if self.test else None
        if given is None:
            return None
        return Examiner(
            as_samples(given, dtype=agreement.model.dtype),
            MeanLoss(self.loss),
            _seen(self.transform),
            settings.scores,
            bool(settings.config.metrics.local_accuracy),
        )

    def _agreed(self, context: Context) -> tuple[Settings, Agreement]:
        key = dict(context.run_config), _device(context)
        if self._last_run is None or self._last_run[0] != key:
            settings = Settings.read(context.run_config, self.folder)
            agreement = settings.agreement(self.model, self.loss, key[1])
            if self.local_steps:
                check_only_averages(agreement.solver)
            self._last_run = key, settings, agreement
        return self._last_run[1:]


def _folder_of_caller() -> Path:
    """Where the app lies that calls one of the functions above: files that settings name are there.

    Flower starts it from wherever its own programs were started.
    """
    file = sys._getframe(2).f_globals.get("__file__")
    return Path(file).resolve().parent if file else Path.cwd()


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


def _signer(context: Context) -> Signer | None:
    path = context.node_config.get(KEY)
    return Signer(Path(str(path)).expanduser()) if path is not None else None


def _seen(transform: Augment | None) -> Transform:
    return (lambda inputs: transform(inputs, None)) if transform else unchanged
