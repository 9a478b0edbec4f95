"""Rounded messages of workers that are simulated, as the wire of `attach` would round them.

Every message is how it differs from the last sum, with what rounding lost of the one before; their
sum is rounded once more, with a debt of its own. docs/wire-formats.md has the formats.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from partavg.core.wire_formats import BLOCK, WIRE_FORMATS

Owed = dict[str, Tensor]
"""What the next messages of a part depend on: the last sum, "known" [l], what workers owe, "late"
[m, l], and what their sum owes, "late_sum" [1, l]."""


def rounded_sum(
    messages: Float[Tensor, "m _"],
    weights: Float[Tensor, "m"],
    rounded: int,
    *,
    owed: Owed,
    wire: str,
) -> Float[Tensor, "_"]:
    """The weighted sum of all workers' messages; all but their first `rounded` numbers are exact.

    The first message of a part is not rounded.
    """
    body = messages.to(weights.dtype) * weights[:, None]
    if "known" not in owed:
        total = body.sum(0)
        owed["known"] = total[:rounded].clone()
        return total
    known, total = owed["known"], body.sum(0)
    if len(known) != rounded:
        raise ValueError(
            f"a part has {rounded} numbers, and {len(known)} when it was sent last: load states "
            f"into the same plan, or begin again"
        )
    change = body[:, :rounded] - known * weights[:, None] + owed.get("late", 0)
    sent = _through(change, wire)
    owed["late"] = change - sent
    whole = sent.sum(0, keepdim=True) + owed.get("late_sum", 0)
    back = _through(whole, wire)
    owed["late_sum"] = whole - back
    total[:rounded] = known.add_(back[0])
    return total


def rounded_bytes(workers: int, rounded: int, exact: int, number: int, wire: str) -> int:
    """What a worker sends of a message: each sums its share, in whole blocks, of all numbers.

    Numbers that are `exact` take so many bytes each.
    """
    blocks = workers * -(-rounded // (workers * BLOCK))
    tail = workers * -(-exact // workers)
    return round(blocks * BLOCK * WIRE_FORMATS[wire].bytes_per_number) + tail * number


def _through(rows: Float[Tensor, "m n"], wire: str) -> Float[Tensor, "m n"]:
    """What is read of rows that were sent."""
    codec, width = WIRE_FORMATS[wire].codec, rows.shape[1]
    assert codec is not None
    return codec.unpack(codec.pack(pad(rows, (0, -width % BLOCK)))).to(rows.dtype)[:, :width]
