"""A peer of benchmarks/peers.py: pfl-research, one process, as its image classification does it.

Needs `pip install pfl` (0.6) and torch in the Python that runs it, and nothing of ours.
"""

import os
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from peer_work import Clock, given, model, say
from torch.nn import functional as F


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work = told.work
    os.environ["PFL_PYTORCH_DEVICE"] = str(told.device)  # before pfl is imported

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(0)
    net: Any = model(told.name).to(told.device)

    def loss(x: Any, y: Any, *, eval: bool = False) -> Any:
        net.train(not eval)
        return F.cross_entropy(net(x), y)

    net.loss = loss
    net.metrics = lambda x, y, **_: {"loss": Weighted(0.0, len(x))}
    x, y = (t.to(told.device).split(work.samples) for t in told.samples)

    def dataset(user: int) -> Any:
        return PyTorchTensorDataset((x[user], y[user]))

    users = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(work.users))))
    trained = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    clock = Clock(told.device)

    class Ends(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *given: Any, **more: Any) -> Any:
            from pfl.metrics import Metrics

            clock.end()
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=told.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        trained,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        NNEvalHyperParams(local_batch_size=None),
        [Ends()],
    )
    say(net, clock, told, f"pfl {version('pfl')}")


if __name__ == "__main__":
    main()
