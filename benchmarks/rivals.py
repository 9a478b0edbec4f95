"""The strongest other ways we know to take a step of many ResNet-20s at once.

Each takes the models of all workers, a batch for each and a device; a call takes one step of SGD
with momentum and returns the losses before it. None averages, gathers batches or keeps BatchNorm's
running statistics. `python benchmarks/gpu.py` times them beside ours; JAX's is in rivals_jax.py.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn import functional as F

Iterate = Callable[[], Tensor]
LR, MOMENTUM = 0.01, 0.9


def forget_statistics(model: nn.Module) -> nn.Module:
    """BatchNorm without running statistics: only ours keeps them."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return model


def rounded(x: Tensor, precision: torch.dtype) -> AbstractContextManager[Any]:
    """Compute in 16 bits inside, or as usual."""
    if precision == torch.float32:
        return nullcontext()
    return torch.autocast(x.device.type, precision)


class Momentum:
    """SGD with momentum on tensors that hold all workers."""

    def __init__(self, params: list[Tensor]) -> None:
        self.params = params
        self.velocity = [torch.zeros_like(p) for p in params]

    def step(self, grads: list[Tensor]) -> None:
        """In as few kernels as torch has for it."""
        torch._foreach_mul_(self.velocity, MOMENTUM)
        torch._foreach_add_(self.velocity, grads)
        torch._foreach_add_(self.params, self.velocity, alpha=-LR)


def by_vmap(
    models: list[nn.Module], x: Tensor, y: Tensor, precision: torch.dtype, *, compiled: bool = True
) -> Iterate:
    """torch.func.vmap over stacked parameters [m, …], compiled as a whole."""
    params, _ = stack_module_state([forget_statistics(model) for model in models])
    params = {name: param.detach() for name, param in params.items()}
    base, momentum = models[0], Momentum(list(params.values()))

    def loss(params: Any, x: Tensor, y: Tensor) -> Tensor:
        with rounded(x, precision):
            return F.cross_entropy(functional_call(base, params, (x,)), y)

    each = vmap(grad_and_value(loss))

    def iterate() -> Tensor:
        losses: Tensor
        grads, losses = each(params, x, y)
        momentum.step([grads[name] for name in params])
        return losses

    fast: Iterate = torch.compile(iterate) if compiled else iterate
    return fast


def by_groups(
    models: list[nn.Module], x: Tensor, y: Tensor, precision: torch.dtype, *, compiled: bool = True
) -> Iterate:
    """Workers folded into channels: convolutions with a group per worker, channels last."""
    workers, batch = x.shape[:2]
    states = [dict(model.named_parameters()) for model in models]
    params = {
        name: torch.stack([state[name].detach() for state in states]).requires_grad_()
        for name in states[0]
    }
    momentum = Momentum(list(params.values()))
    network = Folded(models[0], params, workers)
    images = x.transpose(0, 1).reshape(batch, -1, *x.shape[3:])
    images = images.contiguous(memory_format=torch.channels_last)

    def forward(images: Tensor) -> Tensor:
        with rounded(images, precision):
            outputs = network(images)  # [m, n, classes]
        losses = F.cross_entropy(outputs.flatten(0, 1).float(), y.flatten(), reduction="none")
        return losses.view(workers, batch).mean(1)

    losses_of: Any = torch.compile(forward) if compiled else forward
    step: Any = torch.compile(momentum.step) if compiled else momentum.step

    def iterate() -> Tensor:
        losses: Tensor = losses_of(images)
        grads = torch.autograd.grad(losses.sum(), list(params.values()))
        with torch.no_grad():
            step(list(grads))
        return losses.detach()

    return iterate


class Folded:
    """A ResNet of `partavg.models` for all workers: images [n, m * c, h, w] to [m, n, classes]."""

    def __init__(self, model: nn.Module, params: dict[str, Tensor], workers: int) -> None:
        self.layers, self.params, self.workers = dict(model.named_modules()), params, workers

    def __call__(self, x: Tensor) -> Tensor:
        """All layers."""
        return self.run("", x)

    def run(self, name: str, x: Tensor) -> Tensor:
        """One layer and all that is in it."""
        layer, prefix = self.layers[name], f"{name}." if name else ""
        match layer:
            case nn.Sequential():
                for key in layer._modules:
                    x = self.run(prefix + key, x)
                return x
            case nn.Conv2d():
                weight = self.params[f"{prefix}weight"].flatten(0, 1)
                return F.conv2d(x, weight, None, layer.stride, layer.padding, groups=self.workers)
            case nn.BatchNorm2d():
                weight, bias = (self.params[prefix + key].flatten() for key in ("weight", "bias"))
                return F.batch_norm(x, None, None, weight, bias, training=True, eps=layer.eps)
            case nn.AdaptiveAvgPool2d():
                return x.mean((2, 3))
            case nn.Flatten():
                return x.view(len(x), self.workers, -1).transpose(0, 1)
            case nn.Linear():
                weight, bias = (self.params[prefix + key] for key in ("weight", "bias"))
                return torch.baddbmm(bias[:, None].to(x.dtype), x, weight.mT.to(x.dtype))
            case nn.ReLU() | nn.Identity():
                return F.relu(x) if isinstance(layer, nn.ReLU) else x
        y = F.relu(self.run(f"{prefix}norm1", self.run(f"{prefix}conv1", x)))
        y = self.run(f"{prefix}norm2", self.run(f"{prefix}conv2", y))
        return F.relu(y + self.run(f"{prefix}shortcut", x))
