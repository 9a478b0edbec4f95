"""A peer of benchmarks/peers.py: pfl-research, as its image classification does it.

Needs `pip install pfl` (0.6) and torch in the Python that runs it, and nothing of ours. Several
processes share the users of a round as pfl says, each told its rank and all addresses in the
environment. Of its own benchmark it leaves out what ours does not do either: every tenth round
that also judges the model of each user before and after training.
"""

import os
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from peer_work import AT_ONCE, Clock, given, say
from torch.nn import functional as F


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work = told.work
    os.environ["PFL_PYTORCH_DEVICE"] = str(told.device)  # before pfl is imported
    if told.device.type == "cuda":  # pfl asks for NCCL, which refuses two processes on one GPU
        torch.distributed.init_process_group = partial(
            _begin_with_gloo, torch.distributed.init_process_group
        )

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(told.seed)
    net: Any = told.model().to(told.device)

    def loss(x: Any, y: Any, *, eval: bool = False) -> Any:
        net.train(not eval)
        return F.cross_entropy(net(x), y)

    @torch.no_grad()
    def metrics(x: Any, y: Any, *, eval: bool = True) -> Any:
        net.train(not eval)
        outputs = net(x)
        lost = F.cross_entropy(outputs, y, reduction="sum").item()
        right = (outputs.argmax(1) == y).sum().item()
        return {"loss": Weighted(lost, len(x)), "accuracy": Weighted(right, len(x))}

    net.loss, net.metrics = loss, metrics
    x, y = (t.to(told.device).split(work.samples) for t in told.samples)

    def dataset(user: int) -> Any:
        return PyTorchTensorDataset((x[user], y[user]))

    users = FederatedDataset(dataset, get_user_sampler("random", list(range(work.users))))
    trained = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    judging = NNEvalHyperParams(local_batch_size=AT_ONCE)
    test = Dataset(raw_data=[t.to(told.device) for t in told.test])
    often = work.evaluate or 10**9
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
        judging,
        [CentralEvaluationCallback(test, judging, often), Ends()],
    )
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        shared = ", MPS" if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else ""
        say(net, clock, told, f"pfl {version('pfl')}{shared}")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # the first process holds what the others need to part
        torch.distributed.destroy_process_group()


def _begin_with_gloo(begin: Any, backend: str, **how: Any) -> None:
    """Let processes that share a GPU speak with each other."""
    begin(backend="gloo", **how)


if __name__ == "__main__":
    main()
