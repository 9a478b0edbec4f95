"""A Triton kernel for cross-entropy: a program goes through the logits of one word twice."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "width"])
def cross_entropy(logits, words, scale, found, count, width, BLOCK: tl.constexpr):
    """Losses; logits become their gradients."""
    worker = tl.program_id(1).to(tl.int64)
    row = worker * count + tl.program_id(0)
    logits += row * width
    word = tl.load(words + row)
    factor = tl.where(word >= 0, tl.load(scale + worker), 0.0)
    j = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, width, BLOCK):
        mask = first + j < width
        value = tl.load(logits + first + j, mask=mask, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, value)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.exp(value - base)
        top = higher
    highest = tl.max(top, 0)
    total = tl.sum(total * tl.exp(top - highest), 0)
    own = tl.load(logits + tl.maximum(word, 0)).to(tl.float32)
    loss = highest + tl.log(total) - own
    tl.store(found + row, tl.where(word >= 0, loss, 0.0))
    for first in range(0, width, BLOCK):
        mask = first + j < width
        value = tl.load(logits + first + j, mask=mask, other=0.0).to(tl.float32)
        slope = tl.exp(value - highest) / total - tl.where(first + j == word, 1.0, 0.0)
        tl.store(logits + first + j, (slope * factor).to(logits.dtype.element_ty), mask=mask)
