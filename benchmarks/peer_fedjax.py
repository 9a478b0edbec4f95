"""A peer of benchmarks/peers.py: FedJAX's federated averaging, clients in turn, compiled by JAX.

Needs torch and `pip install fedjax` in the Python that runs it, and nothing of ours. FedJAX 0.0.17
calls functions of trees by names that newer JAX has given up; they get these names back.
"""

import os
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from peer_work import AT_ONCE, Clock, given, say


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work = told.work
    if told.device.type == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"

    import jax
    import jax.numpy as jnp

    for name in ("tree_map", "tree_leaves"):
        if not hasattr(jax, name):
            setattr(jax, name, getattr(jax.tree_util, name))
    import fedjax
    from fedjax.algorithms import fed_avg

    net = told.model()
    start = {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}

    def dense(params: Any, x: Any, layer: int) -> Any:
        return x @ params[f"{layer}.weight"].T + params[f"{layer}.bias"]

    def convolved(params: Any, x: Any, layer: int) -> Any:
        axes = "NCHW", "OIHW", "NCHW"
        weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
        y = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=axes)
        return jax.nn.relu(y + bias[:, None, None])

    def dropped(x: Any, p: float, rng: Any) -> Any:
        return x if rng is None else x * jax.random.bernoulli(rng, 1 - p, x.shape) / (1 - p)

    def apply(params: Any, batch: Any, rng: Any = None) -> Any:
        x = batch["x"]
        if told.name != "cifar10":
            return dense(params, jax.nn.relu(dense(params, x, 0)), 2)
        one, other = (None, None) if rng is None else jax.random.split(rng)
        x = convolved(params, convolved(params, x, 0), 2)
        two = 1, 1, 2, 2
        x = dropped(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, two, two, "VALID"), 0.25, one)
        x = dropped(jax.nn.relu(dense(params, x.reshape(len(x), -1), 7)), 0.5, other)
        return dense(params, x, 10)

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
    tested = [jnp.asarray(x.numpy()) for x in torch.split(told.test[0], AT_ONCE)]
    outputs = jax.jit(lambda params, x: apply(params, {"x": x}))
    clock = Clock(told.device)
    for done in range(1, told.rounds + 1):
        state, _ = algorithm.apply(state, drawn.sample())
        if told.due(done):
            jax.block_until_ready([outputs(state.params, some) for some in tested])
        jax.block_until_ready(state.params)
        clock.end()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(state.params[name])))
    say(net, clock, told, f"fedjax {version('fedjax')}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
