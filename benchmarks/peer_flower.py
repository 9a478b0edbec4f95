"""A peer of benchmarks/peers.py: Flower's FedAvg in its simulation runtime, clients on Ray.

Needs `pip install "flwr[simulation]"` and torch in the Python that runs it, and nothing of ours.
A client process for each core, or as many as FLOWER_CLIENTS says; on a GPU they share it.
"""

import os
import sys
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_work import Clock, given, judged, say
from torch.nn import functional as F


def client(argv: list[str]) -> ClientApp:
    """One that knows where the samples are; it reads them once in each process."""
    app = ClientApp()
    kept: dict[str, Any] = {}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if not kept:
            sys.argv[1:] = argv
            kept["told"] = given()
            kept["net"] = kept["told"].model().to(kept["told"].device)
        told, net = kept["told"], kept["net"]
        work, user = told.work, int(context.node_config["partition-id"])
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        net.train()
        owned = slice(user * work.samples, (user + 1) * work.samples)
        x, y = (t[owned].to(told.device) for t in told.samples)
        solver = torch.optim.SGD(net.parameters(), lr=work.lr)
        for batch in torch.randperm(work.samples, device=told.device).split(work.batch):
            solver.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            solver.step()
        content: dict[str, Any] = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": work.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server(clock: Clock) -> ServerApp:
    """Flower's own FedAvg."""
    app, told = ServerApp(), given()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        clock.ends[:] = []
        net = told.model().to(told.device)
        x, y = (t.to(told.device) for t in told.test)

        def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            if server_round and told.due(server_round):
                net.load_state_dict(arrays.to_torch_state_dict())
                judged(net, (x, y))
            clock.end()
            return MetricRecord()

        done = FedAvg(
            fraction_train=told.work.cohort / told.work.users,
            fraction_evaluate=0.0,
            min_train_nodes=told.work.cohort,
            min_available_nodes=told.work.users,
        ).start(
            grid=grid,
            initial_arrays=ArrayRecord(told.model().state_dict()),
            num_rounds=told.rounds,
            train_config=ConfigRecord(),
            evaluate_fn=note,
        )
        net.load_state_dict(done.arrays.to_torch_state_dict())
        say(net, clock, told, f"flwr {version('flwr')}")

    return app


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    clients = int(os.environ.get("FLOWER_CLIENTS", os.cpu_count() or 1))
    gpu = 1 / clients if told.device.type == "cuda" else 0.0
    resources: dict[str, Any] = {"num_cpus": (os.cpu_count() or 1) / clients, "num_gpus": gpu}
    settings: Any = {"client_resources": resources}
    run_simulation(
        server(Clock(told.device)),
        client(sys.argv[1:]),
        num_supernodes=told.work.users,
        backend_config=settings,
    )


if __name__ == "__main__":
    main()
