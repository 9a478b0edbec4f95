"""A decoder-only transformer that predicts the next token of a text.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019 (GPT-2); rotary positions:
Su et al., 2021; RMSNorm: Zhang and Sennrich, 2019; SwiGLU: Shazeer, 2020.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.arguments import check_choice, check_whole

Positions = Literal["rotary", "learned"]
Norm = Literal["rms", "layer"]
Activation = Literal["gelu", "swiglu"]

SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 64, 2),
    "1m": (4, 144, 4),
    "3m": (4, 256, 4),
    "11m": (6, 384, 6),
    "25m": (8, 512, 8),
    "49m": (10, 640, 10),
    "gpt2": (12, 768, 12),
}
"""Layers, width and heads; the names say how many parameters the layers have."""

_LEAST = torch.finfo(torch.float32).eps  # by default it would depend on the type of activations


@dataclass(frozen=True, slots=True)
class Shape:
    """What all blocks of a model share."""

    layers: int
    width: int
    heads: int
    positions: Positions
    norm: Norm
    activation: Activation
    bias: bool
    dropout: float

    def normalized(self) -> nn.Module:
        """A normalization of tokens."""
        if self.norm == "rms":
            return nn.RMSNorm(self.width, eps=_LEAST)
        return nn.LayerNorm(self.width, bias=self.bias)

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        """A map of tokens."""
        return nn.Linear(inputs, outputs, bias=self.bias)


class Attention(nn.Module):
    """Every token looks at itself and those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = shape.linear(shape.width, 3 * shape.width)
        self.out = shape.linear(shape.width, shape.width)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Tokens [n, t, width] -> what they found."""
        n, t, width = x.shape
        qkv = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).transpose(1, 3)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        if turns is not None:
            q, k = rotated(q, turns), rotated(k, turns)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(found.transpose(1, 2).reshape(n, t, width))
        return mixed


class FeedForward(nn.Module):
    """What a token makes of what it found: four times as wide in between."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.activation == "swiglu"
        # Three matrices instead of two, and as many parameters.
        inner = -(-8 * shape.width // 3 // 16) * 16 if self.gated else 4 * shape.width
        self.up = shape.linear(shape.width, 2 * inner if self.gated else inner)
        self.down = shape.linear(inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens -> tokens."""
        y = self.up(x)
        if self.gated:
            gate, y = y.chunk(2, -1)
            y = F.silu(gate) * y
        else:
            y = F.gelu(y, approximate="tanh")
        made: Tensor = self.down(y)
        return made


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what was there before."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before_attention, self.before_feed = shape.normalized(), shape.normalized()
        self.attention, self.feed = Attention(shape), FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Tokens -> tokens."""
        x = x + self.dropout(self.attention(self.before_attention(x), turns))
        kept: Tensor = x + self.dropout(self.feed(self.before_feed(x)))
        return kept


class GPT(nn.Module):
    """Tokens [n, t] -> logits [n, t, words] of the token after each."""

    def __init__(self, words: int, context: int, shape: Shape, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, shape.width)
        learned = shape.positions == "learned"
        self.positions = nn.Parameter(torch.empty(context, shape.width)) if learned else None
        self.turned = shape.width // shape.heads
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = shape.normalized()
        self.head = nn.Linear(shape.width, words, bias=False)
        self.apply(_initialize_)
        if self.positions is not None:
            nn.init.normal_(self.positions, std=0.02)
        for name, tensor in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):  # 2 L layers add to what goes on
                nn.init.normal_(tensor, std=0.02 / sqrt(2 * shape.layers))
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each."""
        x = self.embedding(tokens)
        turns = None
        if self.positions is None:
            turns = angles(tokens.shape[1], self.turned, x)
        else:
            x = x + self.positions[: tokens.shape[1]]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, turns)
        logits: Tensor = self.head(self.norm(x))
        return logits


def angles(length: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, width / 2] by which heads turn: slower in later columns."""
    place = torch.arange(length, device=like.device, dtype=torch.float32)
    pair = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    turn = place[:, None] * 10_000.0 ** (-pair / width)
    return turn.cos().to(like.dtype), turn.sin().to(like.dtype)


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs of columns, one from either half of x [n, heads, t, d], turned by their angle."""
    cos, sin = turns
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def gpt(
    shape: tuple[int, ...],
    classes: int,
    *,
    size: str = "1m",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    positions: Positions = "rotary",
    norm: Norm = "rms",
    activation: Activation = "gelu",
    tied: bool = True,
    bias: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """A GPT of some size, from 0.1 M parameters to GPT-2 small; `layers` and so on change it.

    Samples are `shape[0]` tokens, the longest text that it reads, each below `classes`.
    """
    if not isinstance(shape, tuple | list) or len(shape) != 1:
        raise ValueError(
            f"samples of shape {shape} are no texts: use data whose shape is (length,)"
        )
    check_whole("classes", classes, 1)
    check_choice("size", size, tuple(SIZES))
    check_choice("positions", positions, get_args(Positions))
    check_choice("norm", norm, get_args(Norm))
    check_choice("activation", activation, get_args(Activation))
    sizes = (
        check_whole(name, given if given is not None else usual, 1)
        for name, given, usual in zip(
            ("layers", "width", "heads"), (layers, width, heads), SIZES[size], strict=True
        )
    )
    depth, wide, looks = sizes
    if wide % (2 * looks):
        raise ValueError(
            f"width {wide} cannot be cut into {looks} heads of an even width: use a multiple of "
            f"{2 * looks}"
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout {dropout} is outside [0, 1): 0 is usual, 0.1 for little text")
    made = Shape(depth, wide, looks, positions, norm, activation, bias, dropout)
    return GPT(classes, shape[0], made, tied=tied)


def _initialize_(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear | nn.Embedding):
        nn.init.normal_(layer.weight, std=0.02)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
