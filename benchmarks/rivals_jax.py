"""jit(vmap(value_and_grad)) over ResNet-20s in JAX: a rival of benchmarks/rivals.py.

It takes the models, batches and precision that the others take, and needs `pip install jax`
("jax[cuda13]" for a GPU). Written for our ResNet-20 with projections.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

LR, MOMENTUM = 0.01, 0.9


def by_jax(models: list[nn.Module], x: Tensor, y: Tensor, precision: str) -> Callable[[], Any]:
    """A step of all workers, whose losses are returned; JAX computes them in the background."""
    import jax
    import jax.numpy as jnp

    kind = jnp.dtype(precision)
    states = [dict(model.named_parameters()) for model in models]
    params = {
        name: jnp.stack([jnp.asarray(state[name].detach().cpu().numpy()) for state in states])
        for name in states[0]
    }
    velocity = {name: jnp.zeros_like(param) for name, param in params.items()}
    images = jnp.asarray(np.ascontiguousarray(x.permute(0, 1, 3, 4, 2).cpu().numpy()))
    targets = jnp.asarray(y.cpu().numpy())
    layers = {name: layer for name, layer in models[0].named_modules() if name}

    def convolved(params: Any, name: str, x: Any) -> Any:
        layer = layers[name]
        assert isinstance(layer, nn.Conv2d)
        weight = params[f"{name}.weight"].astype(kind).transpose(2, 3, 1, 0)
        pads = [(int(pad), int(pad)) for pad in layer.padding]
        shapes = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, layer.stride, pads, dimension_numbers=shapes)

    def normed(params: Any, name: str, x: Any) -> Any:
        full = x.astype(jnp.float32)
        mean, variance = full.mean((0, 1, 2)), full.var((0, 1, 2))
        scale = params[f"{name}.weight"] * jax.lax.rsqrt(variance + 1e-5)
        return ((full - mean) * scale + params[f"{name}.bias"]).astype(kind)

    def block(params: Any, name: str, x: Any) -> Any:
        y = jax.nn.relu(normed(params, f"{name}.norm1", convolved(params, f"{name}.conv1", x)))
        y = normed(params, f"{name}.norm2", convolved(params, f"{name}.conv2", y))
        if f"{name}.shortcut.0" in layers:
            x = convolved(params, f"{name}.shortcut.0", x)
            x = normed(params, f"{name}.shortcut.1", x)
        return jax.nn.relu(y + x)

    blocks = sorted({int(name.split(".")[0]) for name in layers if name.endswith(".conv1")})

    def loss(params: Any, x: Any, y: Any) -> Any:
        x = jax.nn.relu(normed(params, "1", convolved(params, "0", x.astype(kind))))
        for number in blocks:
            x = block(params, str(number), x)
        last = f"{blocks[-1] + 3}"
        x = x.astype(jnp.float32).mean((1, 2))
        outputs = x @ params[f"{last}.weight"].T + params[f"{last}.bias"]
        return -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1).mean()

    def step(params: Any, velocity: Any, x: Any, y: Any) -> Any:
        losses, grads = jax.vmap(jax.value_and_grad(loss))(params, x, y)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - LR * v, params, velocity), velocity, losses

    fast = jax.jit(step, donate_argnums=(0, 1))
    held = [params, velocity]

    def iterate() -> Any:
        held[0], held[1], losses = fast(*held, images, targets)
        return losses

    return iterate
