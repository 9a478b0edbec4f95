"""Attention for all workers at once: F.scaled_dot_product_attention on workers x samples."""

from typing import Any

from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from partavg.engines.dropout import KeyedDropout
from partavg.engines.fused.rows import Rows


def run(
    function: Any,
    rows: Rows,
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """What queries [m, n, …, t, d] find at keys [m, n, …, s, d] and values.

    Workers and samples are one axis for torch's kernels. With dropout, attention is written out,
    with the masks that the other engines draw.
    """
    query, key, value = (rows.cast(each) for each in (query, key, value))
    if attn_mask is not None:
        attn_mask = rows.cast(attn_mask)
    if dropout_p:
        return _dropping(rows, query, key, value, attn_mask, dropout_p, is_causal, options)
    found = F.scaled_dot_product_attention(
        query.flatten(0, 1),
        key.flatten(0, 1),
        value.flatten(0, 1),
        attn_mask=None if attn_mask is None else _spread(attn_mask, query),
        is_causal=is_causal,
        **options,
    )
    return found.view(*query.shape[:2], *found.shape[1:])


def _spread(mask: Tensor, query: Tensor) -> Tensor:
    """A mask [m, …] as one of workers x samples, no larger than it must be."""
    mask = mask.view(len(mask), *[1] * (query.ndim - mask.ndim), *mask.shape[1:])
    if len(mask) > 1 and mask.stride(0) == 0 and mask.shape[1] == 1:
        return mask[0]  # the same for all
    return mask.expand(-1, query.shape[1], *mask.shape[2:]).flatten(0, 1)


def _dropping(
    rows: Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    p: float,
    causal: bool,
    options: dict[str, Any],
) -> Tensor:
    def attend(query: Tensor, key: Tensor, value: Tensor, own: Tensor, *mask: Tensor) -> Tensor:
        with KeyedDropout(own):
            return F.scaled_dot_product_attention(
                query, key, value, mask[0] if mask else None, p, causal, **options
            )

    given = () if mask is None else (mask,)
    found: Tensor = vmap(attend)(query, key, value, rows.next_keys(), *given)
    return found
