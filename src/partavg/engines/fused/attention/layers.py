"""nn.MultiheadAttention, and the layers of nn.TransformerEncoder, for all workers at once."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused import by_vmap
from partavg.engines.fused.attention import operation
from partavg.engines.fused.dropout import operation as dropout
from partavg.engines.fused.linear import operation as linear
from partavg.engines.fused.rows import Rows
from partavg.engines.fused.token_norm import operation as norm

_ACTIVATIONS = (F.relu, F.gelu, torch.relu)


def covers_heads(layer: Any) -> bool:
    """Whether queries, keys and values are as wide as each other, and nothing is added to them."""
    plain = layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn
    return bool(plain and layer._qkv_same_embed_dim)


def covers_layer(layer: Any) -> bool:
    """Whether all that it consists of is covered."""
    known = layer.activation in _ACTIVATIONS or isinstance(layer.activation, nn.ReLU | nn.GELU)
    return known and covers_heads(layer.self_attn)


def covers_encoder(encoder: Any) -> bool:
    """Whether its layers are."""
    plain = encoder.norm is None or isinstance(encoder.norm, nn.LayerNorm | nn.RMSNorm)
    return plain and all(
        type(layer) is nn.TransformerEncoderLayer and covers_layer(layer)
        for layer in encoder.layers
    )


def run_heads(
    layer: Any,
    rows: Rows,
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What a layer finds, and None instead of weights: a program asks for none that it uses."""
    if need_weights:
        raise NotImplementedError("weights of attention are not covered, only what it finds")
    if query.ndim == 3:
        raise NotImplementedError("attention without an axis of samples is not covered")
    if not layer.batch_first:
        turned = {id(each): each.transpose(1, 2) for each in (query, key, value)}
        query, key, value = (turned[id(each)] for each in (query, key, value))
    projected = _projected(layer, rows, name, query, key, value)
    q, k, v = (_headed(each, layer.num_heads) for each in projected)
    causal = is_causal and key_padding_mask is None and attn_mask is not None
    mask = None if causal else _mask(attn_mask, key_padding_mask, layer.num_heads, q)
    p = layer.dropout if layer.training else 0.0
    found = operation.run(None, rows, "", q, k, v, mask, p, causal)
    y = linear.run(None, rows, f"{name}.out_proj", found.transpose(2, 3).flatten(3))
    return (y if layer.batch_first else y.transpose(1, 2)), None


def run_layer(
    layer: Any,
    rows: Rows,
    name: str,
    x: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """A layer of an encoder, normalized before or after what it adds."""

    def attend(x: Tensor) -> Tensor:
        found, _ = run_heads(
            *(layer.self_attn, rows, f"{name}.self_attn", x, x, x, src_key_padding_mask, False),
            attn_mask=src_mask,
            is_causal=is_causal,
        )
        return drop("dropout1", found)

    def feed(x: Tensor) -> Tensor:
        wide = linear.run(layer.linear1, rows, f"{name}.linear1", x)
        wide = drop("dropout", by_vmap.call(layer.activation, rows, "", wide))
        return drop("dropout2", linear.run(layer.linear2, rows, f"{name}.linear2", wide))

    def drop(which: str, x: Tensor) -> Tensor:
        found: Tensor = dropout.run(getattr(layer, which), rows, "", x)
        return found

    def normalized(which: str, x: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
        return norm.add_and_run(getattr(layer, which), rows, f"{name}.{which}", x, other)

    if layer.norm_first:
        x, y = normalized("norm1", x, None)
        x, y = normalized("norm2", x, attend(y))
        return x + feed(y)
    _, x = normalized("norm1", x, attend(x))
    return normalized("norm2", x, feed(x))[1]


def run_encoder(
    encoder: Any,
    rows: Rows,
    name: str,
    x: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """Layers one after another."""
    for number, layer in enumerate(encoder.layers):
        given = (
            layer,
            rows,
            f"{name}.layers.{number}",
            x,
            mask,
            src_key_padding_mask,
            bool(is_causal),
        )
        x = rows.again(partial(run_layer, *given))
    if encoder.norm is None:
        return x
    return norm.run(encoder.norm, rows, f"{name}.norm", x)


def _projected(
    layer: Any, rows: Rows, name: str, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    """Queries, keys and values; in one product, where they come from the same tokens."""
    weight = rows.tensor_of(name, "in_proj_weight")
    bias = rows.maybe(name, "in_proj_bias")
    if query is key is value:
        place = rows.gradient_of(name, "in_proj_weight")
        return linear.apply(rows, query, weight, bias, place).chunk(3, -1)
    given = zip((query, key, value), weight.chunk(3, 1), strict=True)
    biases = (None,) * 3 if bias is None else bias.chunk(3, 1)
    return tuple(
        linear.apply(rows, *each, own, None) for each, own in zip(given, biases, strict=True)
    )


def _headed(x: Tensor, heads: int) -> Tensor:
    """[m, n, t, width] -> [m, n, heads, t, …]; never a copy."""
    return x.view(*x.shape[:-1], heads, -1).transpose(2, 3)


def _mask(mask: Tensor | None, padding: Tensor | None, heads: int, q: Tensor) -> Tensor | None:
    """Both masks in one that is added to scores: where they are true, nobody looks."""
    found = None
    if mask is not None:
        found = _added(mask, q.dtype)
        if found.ndim == 4:  # [m, n * heads, t, s]
            found = found.view(len(found), -1, heads, *found.shape[2:])
    if padding is not None:
        padded = _added(padding, q.dtype)[:, :, None, None]
        if found is not None:
            padded = padded + (found if found.ndim == 5 else found[:, None, None])
        found = padded
    return found


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)
