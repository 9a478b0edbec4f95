"""The layers with parameters, for all workers at once: activations are [m, n, …]."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from partavg.engines.fused import convolution, lstm, norm
from partavg.engines.fused.product import Product
from partavg.engines.fused.rows import Rows


def covered(layer: nn.Module) -> bool:
    """Whether `run`, or a program's joined BatchNorm, can compute what the layer computes."""
    rule = _RULES.get(type(layer))
    return rule is not None and rule(layer)


def run(layer: nn.Module, rows: Rows, name: str, *args: Any) -> Any:
    """The outputs of a layer for all workers."""
    return _RUNS[type(layer)](layer, rows, name, *args)


def batch_norm(
    layer: Any,
    rows: Rows,
    name: str,
    x: Tensor,
    residual: Tensor | None,
    relu: bool,
    measured: Any = None,
) -> Tensor:
    """BatchNorm, perhaps an addition, perhaps ReLU; updates the running statistics in place.

    The number of batches is left to the engine, which counts for all layers at once. `measured`
    are the statistics of x, where the layer before it took them.
    """
    weight, bias, mean, var = _norm(rows, name)
    if not layer.training and mean is not None:
        assert var is not None
        return norm.known(x, weight, bias, mean, var, layer.eps, residual, relu)
    factor = layer.momentum
    if factor is None:  # a cumulative mean
        batches = rows.maybe(name, "num_batches_tracked")
        factor = None if batches is None else 1 / (batches + 1).unsqueeze(1)
    return norm.measured(x, weight, bias, mean, var, layer.eps, factor, residual, relu, measured)


def norm_conv(
    layers: tuple[Any, Any],
    rows: Rows,
    names: tuple[str, str],
    x: Tensor,
    residual: Tensor | None,
    relu: bool,
    measured: Any,
    *,
    alone: bool,
) -> convolution.Convolved | None:
    """BatchNorm, as above, and the convolution after it in one step; None where there is none."""
    layer, after = layers
    weight, bias, mean, var = _norm(rows, names[0])
    kernel = rows.maybe(names[1], "weight")
    assert kernel is not None
    tiling = convolution.tiling(x, after, kernel, back=True)
    if tiling is None or not layer.training or layer.momentum is None or weight is None:
        return None
    from partavg.engines.fused.small import Normed

    assert bias is not None
    running = None if mean is None or var is None else (mean, var)
    normed = Normed(
        x, weight, bias, residual, running, layer.eps, layer.momentum, relu, measured, alone
    )
    return convolution.conv2d_small(normed, kernel, tiling)


def conv(layer: Any, rows: Rows, name: str, x: Tensor) -> convolution.Convolved:
    """A convolution, and its input, for its other users."""
    weight, bias = rows.maybe(name, "weight"), rows.maybe(name, "bias")
    assert weight is not None
    tiling = convolution.tiling(x, layer, weight, back=x.requires_grad)
    if tiling is not None:
        return convolution.conv2d_small(x, weight, tiling)
    padding = (0, 0) if layer.padding == "valid" else layer.padding
    return convolution.conv2d(x, weight, bias, layer.stride, padding, layer.dilation, layer.groups)


def _norm(rows: Rows, name: str) -> tuple[Tensor | None, ...]:
    """Weight, bias, running mean and variance; the kernels take one stride for the first two."""
    keys = ("weight", "bias", "running_mean", "running_var")
    weight, bias, *running = (rows.maybe(name, key) for key in keys)
    if weight is not None and bias is not None and weight.stride(0) != bias.stride(0):
        weight, bias = weight.contiguous(), bias.contiguous()  # one of them is frozen
    return weight, bias, *running


def _conv_covered(layer: Any) -> bool:
    return bool(layer.padding_mode == "zeros" and layer.padding != "same")


def _linear(layer: Any, rows: Rows, name: str, x: Tensor) -> Tensor:
    weight, bias = rows.maybe(name, "weight"), rows.maybe(name, "bias")
    assert weight is not None
    flat = x.reshape(len(x), -1, x.shape[-1])
    y: Tensor = Product.apply(flat, weight)  # type: ignore[no-untyped-call]
    if bias is not None:
        y = y + rows.cast(bias)[:, None]
    return y.view(*x.shape[:-1], weight.shape[1])


def _embedding(layer: Any, rows: Rows, name: str, words: Tensor) -> Tensor:
    weight = rows.maybe(name, "weight")
    assert weight is not None
    worker = torch.arange(len(words), device=words.device)[:, None]
    found = rows.cast(weight[worker, words.flatten(1)]).view(*words.shape, -1)
    if layer.padding_idx is None:
        return found
    return torch.where((words == layer.padding_idx)[..., None], found.detach(), found)


def _embedding_covered(layer: Any) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def _lstm(
    layer: Any, rows: Rows, name: str, x: Tensor, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    weights = [rows.maybe(name, key) for key in layer._flat_weights_names]
    return lstm.lstm(layer, [rows.cast(w) for w in weights if w is not None], x, start)


def _lstm_covered(layer: Any) -> bool:
    # Between layers torch.lstm draws dropout from its own stream, not from a worker's key.
    return bool(layer.proj_size == 0 and (layer.num_layers == 1 or layer.dropout == 0))


_FUNCTION_OF = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
}


def _dropout(layer: Any, rows: Rows, name: str, x: Tensor) -> Any:
    return rows.dropout(_FUNCTION_OF[type(layer)], x, layer.p, layer.training)


def _vmapped(layer: Any, rows: Rows, name: str, x: Tensor) -> Any:
    """A layer that is rare enough to be left to vmap."""
    own = {key: rows.cast(rows.tensor(f"{name}.{key}")) for key, _ in layer.named_parameters()}
    return vmap(lambda some, x: torch.func.functional_call(layer, some, (x,)))(own, x)


def _always(layer: nn.Module) -> bool:
    return True


_RUNS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LSTM: _lstm,
    **dict.fromkeys(_FUNCTION_OF, _dropout),
    **dict.fromkeys((nn.Conv1d, nn.GroupNorm, nn.LayerNorm), _vmapped),
}
_RULES: dict[type[nn.Module], Callable[[Any], bool]] = {
    **dict.fromkeys(_RUNS, _always),
    nn.Conv2d: _conv_covered,
    nn.Embedding: _embedding_covered,
    nn.LSTM: _lstm_covered,
    nn.BatchNorm1d: _always,
    nn.BatchNorm2d: _always,
}
