"""The two apps that benchmarks/flower.py compares: one task, averaged by partavg and by Flower."""

import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.flower import client_app, server_app
from partavg.models import mlp

CLASSES, BATCH, LR, MOMENTUM = 10, 16, 0.05, 0.9


def model_of(context: Context) -> nn.Module:
    """A network with two hidden layers of a width that the run config gives."""
    width = int(context.run_config["app.width"])
    return mlp((784,), CLASSES, hidden=(width, width))


def data(context: Context) -> tuple[Tensor, Tensor]:
    """Made-up samples, others on each client."""
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    inputs = torch.randn(256, 784, generator=generator)
    return inputs, torch.randint(0, CLASSES, (256,), generator=generator)


def partavg_client(width: int) -> ClientApp:
    """Ours."""
    return client_app(lambda: mlp((784,), CLASSES, hidden=(width, width)), F.cross_entropy, data)


def partavg_server(width: int) -> ServerApp:
    """Ours."""
    return server_app(lambda: mlp((784,), CLASSES, hidden=(width, width)), F.cross_entropy)


fedavg_client = ClientApp()


@fedavg_client.train()
def train(message: Message, context: Context) -> Message:
    """As many steps of SGD from the model that came."""
    module = model_of(context)
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, targets = data(context)
    velocity = [torch.zeros_like(p) for p in module.parameters()]
    for _ in range(int(context.run_config["app.local-steps"])):
        chosen = torch.randint(0, len(inputs), (BATCH,))
        loss = F.cross_entropy(module(inputs[chosen]), targets[chosen])
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, grad, v in zip(module.parameters(), grads, velocity, strict=True):
                parameter.sub_(v.mul_(MOMENTUM).add_(grad), alpha=LR)
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": len(inputs)}),
        }
    )
    return Message(content=content, reply_to=message)


fedavg_server = ServerApp()


@fedavg_server.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's own FedAvg; the time after every round goes to a file."""
    times = Path(str(context.run_config["app.times"]))
    began = time.monotonic()

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        with times.open("a") as file:
            file.write(f"{time.monotonic() - began}\n")
        return MetricRecord()

    FedAvg(fraction_evaluate=0.0, min_available_nodes=3).start(
        grid=grid,
        initial_arrays=ArrayRecord(model_of(context).state_dict()),
        num_rounds=int(context.run_config["app.rounds"]),
        train_config=ConfigRecord(),
        evaluate_fn=note,
    )
