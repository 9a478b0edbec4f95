"""A peer of benchmarks/peers.py: FedJAX's federated averaging, clients in turn, compiled by JAX.

Needs torch and `pip install fedjax "jax<0.4.26" "flax<0.9" "numpy<2"` in the Python that runs it,
and nothing of ours: FedJAX 0.0.17 does not run with a newer JAX. For networks of dense layers only.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from peer_work import Clock, given, say


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work = told.work
    if told.name == "cifar10":
        raise SystemExit("its network is not written for FedJAX yet")

    import fedjax
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    net = told.model()
    start = {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}

    def apply(params: Any, batch: Any, rng: Any = None) -> Any:
        hidden = jax.nn.relu(batch["x"] @ params["0.weight"].T + params["0.bias"])
        return hidden @ params["2.weight"].T + params["2.bias"]

    def loss(batch: Any, outputs: Any) -> Any:
        taken = jnp.take_along_axis(jax.nn.log_softmax(outputs), batch["y"][:, None], 1)
        return -taken[:, 0]

    trained = fedjax.Model(
        init=lambda rng: start,
        apply_for_train=apply,
        apply_for_eval=apply,
        train_loss=loss,
        eval_metrics={},
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(trained),
        fedjax.optimizers.sgd(work.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
    )
    x, y = (t.numpy().reshape(work.users, work.samples, *t.shape[1:]) for t in told.samples)
    users = fedjax.InMemoryFederatedData(
        {str(user).encode(): {"x": x[user], "y": y[user]} for user in range(work.users)}
    )
    drawn = fedjax.client_samplers.UniformGetClientSampler(users, work.cohort, seed=told.seed)
    state = algorithm.init(start)
    clock = Clock(told.device)
    for _ in range(told.rounds):
        state, _ = algorithm.apply(state, drawn.sample())
        jax.block_until_ready(state.params)
        clock.end()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(state.params[name])))
    say(net, clock, told, f"fedjax {version('fedjax')}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
