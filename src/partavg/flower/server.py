"""The server's half of an app: your model, and samples to test it on."""

from collections.abc import Callable

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from partavg.backends.flower.post import Post
from partavg.backends.simulate import Augment
from partavg.engines.model import Loss
from partavg.evaluation import Transform, unchanged
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings


def server_app(
    model: Callable[[], nn.Module],
    loss: Loss,
    test: Callable[[], tuple[Tensor, Tensor]] | None = None,
    *,
    transform: Augment | None = None,
) -> ServerApp:
    """A Flower ServerApp that averages parts of the clients' models.

    `test` returns samples to evaluate the averaged model on, if the server has any.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = Settings.read(context.run_config)
        terms = settings.terms(model, loss, torch.device("cpu"))
        run = FederatedRun(settings, terms, Post(grid), test() if test else None, _seen(transform))
        for _ in run:
            pass

    return app


def _seen(transform: Augment | None) -> Transform:
    return (lambda inputs: transform(inputs, None)) if transform else unchanged
