"""What the engine can run: every layer, function and method, and the operation that runs it.

A new layer is one line here. An operation is called as `run(what, rows, name, *args, **options)`:
the layer or function itself, the workers' tensors, the layer's name among them (functions have
none), and what the module calls it with. A rule says which instances of a layer are covered.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from partavg.engines.fused import by_vmap
from partavg.engines.fused.attention import layers as attention_layers
from partavg.engines.fused.attention import operation as attention
from partavg.engines.fused.convolution import operation as convolution
from partavg.engines.fused.dropout import operation as dropout
from partavg.engines.fused.embedding import operation as embedding
from partavg.engines.fused.linear import operation as linear
from partavg.engines.fused.norm import operation as norm
from partavg.engines.fused.pool import operation as pool
from partavg.engines.fused.recurrent import operation as recurrent
from partavg.engines.fused.rotary import operation as rotary
from partavg.engines.fused.token_norm import operation as token_norm
from partavg.models.gpt import angles, rotated


def _always(layer: Any) -> bool:
    return True


class Covered(NamedTuple):
    """The operation that runs a layer, function or method, and for which layers it can."""

    run: Callable[..., Any]
    rule: Callable[[Any], bool] = _always


def _named(namespace: Any, names: str) -> list[Any]:
    return [getattr(namespace, name) for name in names.split()]


_POOLS = "AvgPool1d AvgPool2d MaxPool1d MaxPool2d"
_ADAPTIVE_POOLS = "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d"
_ELEMENTWISE = "ELU GELU Hardswish Identity LeakyReLU ReLU ReLU6 SiLU Sigmoid Softplus Tanh"
_STATELESS = "Softmax Unflatten ZeroPad2d"
_OPERATORS = (
    "add sub mul truediv neg pow matmul floordiv mod getitem iadd eq ne lt le gt ge and_ or_ invert"
)
_MATHEMATICS = (
    "add sub mul div neg abs exp log sqrt square pow clamp matmul bmm chunk split flatten reshape "
    "permute transpose squeeze unsqueeze mean sum amax relu sigmoid tanh softmax log_softmax "
    "sin cos rsqrt unbind movedim swapaxes swapdims tril triu masked_fill where logical_not eq ne "
    "lt le gt ge var std"
)
_METHODS = (
    "contiguous expand expand_as t view view_as to type_as float repeat unflatten masked_fill bool "
    "long int"
)
_ATTRIBUTES = "shape ndim dtype device"
MAKERS = "arange zeros ones full linspace"
"""Functions of torch that make tensors from numbers."""
_ACTIVATIONS = "relu relu6 leaky_relu elu gelu silu sigmoid tanh softplus"
_FUNCTIONS = "softmax log_softmax linear pad normalize"

COVERED: dict[Any, Covered] = {
    # Layers with parameters, by their classes.
    nn.Conv2d: Covered(convolution.run, convolution.covers),
    nn.BatchNorm1d: Covered(norm.run),
    nn.BatchNorm2d: Covered(norm.run),
    nn.GroupNorm: Covered(norm.run_groups),
    nn.Linear: Covered(linear.run),
    nn.Embedding: Covered(embedding.run, embedding.covers),
    nn.LSTM: Covered(recurrent.run, recurrent.covers),
    nn.Conv1d: Covered(by_vmap.call_layer),
    nn.LayerNorm: Covered(token_norm.run),
    nn.RMSNorm: Covered(token_norm.run),
    nn.MultiheadAttention: Covered(attention_layers.run_heads, attention_layers.covers_heads),
    nn.TransformerEncoderLayer: Covered(attention_layers.run_layer, attention_layers.covers_layer),
    nn.TransformerEncoder: Covered(attention_layers.run_encoder, attention_layers.covers_encoder),
    # Layers without.
    **dict.fromkeys(_named(nn, _POOLS), Covered(pool.run)),
    **dict.fromkeys(_named(nn, _ADAPTIVE_POOLS), Covered(pool.run)),
    **dict.fromkeys(_named(nn, "Dropout Dropout1d Dropout2d Dropout3d"), Covered(dropout.run)),
    **dict.fromkeys(_named(nn, _ELEMENTWISE), Covered(by_vmap.call_elementwise)),
    **dict.fromkeys(_named(nn, _STATELESS), Covered(by_vmap.call)),
    nn.Flatten: Covered(by_vmap.flatten),
    # Functions.
    **dict.fromkeys(_named(F, "max_pool2d avg_pool2d adaptive_avg_pool2d"), Covered(pool.run)),
    **dict.fromkeys(_named(F, "dropout dropout1d dropout2d dropout3d"), Covered(dropout.run)),
    **dict.fromkeys(_named(operator, _OPERATORS), Covered(by_vmap.call)),
    **dict.fromkeys(_named(torch, _MATHEMATICS), Covered(by_vmap.call)),
    **dict.fromkeys(
        _named(torch, f"cat stack outer zeros_like ones_like full_like {MAKERS}"),
        Covered(by_vmap.call),
    ),
    **dict.fromkeys(_named(F, _ACTIVATIONS), Covered(by_vmap.call_elementwise)),
    **dict.fromkeys(_named(F, _FUNCTIONS), Covered(by_vmap.call)),
    F.scaled_dot_product_attention: Covered(attention.run),
    F.layer_norm: Covered(token_norm.run_function),
    F.rms_norm: Covered(token_norm.run_function),
    rotated: Covered(rotary.run),
    angles: Covered(rotary.angles),
    **{(getattr, name): Covered(by_vmap.attribute) for name in _ATTRIBUTES.split()},
    # Methods of tensors, by their names.
    **dict.fromkeys(_MATHEMATICS.split(), Covered(by_vmap.call)),
    **dict.fromkeys(_METHODS.split(), Covered(by_vmap.call)),
    "dim": Covered(by_vmap.dim),
    "size": Covered(by_vmap.size),
}


def find(node: fx.Node, layer: nn.Module | None) -> Covered | None:
    """The entry for a node of a traced module, and for its layer if it calls one."""
    key: Any = node.target
    if layer is not None:
        key = type(layer)
    elif key is getattr:
        key = getattr, node.args[1]
    found = COVERED.get(key)
    return found if found is not None and (layer is None or found.rule(layer)) else None


WHOLE: tuple[Callable[..., Any], ...] = (angles, rotated)
"""Functions that a traced module is not looked into at."""
