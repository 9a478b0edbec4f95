"""Steps of transformers rearranged: sums with the norm after them; parts of a value as one step."""

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn

from partavg.engines.fused.fusion import adds


def added_norm(name: str, x: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    """Stands in a graph for an addition and the LayerNorm or RMSNorm after it."""
    raise AssertionError("a program runs it")


def fuse_token_norms_(graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
    """Let every norm give what it normalizes as well, and add it up if it is a sum.

    Others use what it gives, so that their gradients reach the norm's own kernel.
    """
    for norm in list(graph.nodes):
        if norm.op != "call_module" or not _is_norm(layers[str(norm.target)]):
            continue
        given: Any = norm.args[0] if norm.args else norm.kwargs["input"]
        terms = tuple(given.args) if adds(given) else (given, None)
        with graph.inserting_after(given):
            new = graph.call_function(added_norm, (norm.target, *terms))
        with graph.inserting_after(new):
            total, normalized = (graph.call_function(getitem, (new, at)) for at in (0, 1))
        norm.replace_all_uses_with(normalized)
        graph.erase_node(norm)
        given.replace_all_uses_with(total, lambda user, new=new: user is not new)
        if not given.users:
            graph.erase_node(given)
    graph.lint()


def parts(x: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Stands for all parts of a value along an axis of one worker."""
    return Parts.apply(x, axis + 1)  # type: ignore[no-untyped-call,no-any-return]


def join_parts_(graph: fx.Graph) -> None:
    """Take `x[:, 0]`, `x[:, 1]` and so on in one step; autograd would fill an x for each."""
    for node in list(graph.nodes):
        found = {user: _part(user) for user in node.users}
        axes = {part[0] for part in found.values() if part is not None}
        if len(found) < 2 or None in found.values() or len(axes) > 1:
            continue
        (axis,) = axes
        with graph.inserting_after(node):
            new = graph.call_function(parts, (node, axis))
        for user, part in found.items():
            assert part is not None
            user.args = new, part[1]
    graph.lint()


def _part(node: fx.Node) -> tuple[int, int] | None:
    """The axis and number of what `x[:, :, number]` takes, all else of it untouched."""
    if node.target is not getitem or not isinstance(node.args[1], tuple):
        return None
    *rest, number = node.args[1]
    whole = all(isinstance(index, slice) and index == slice(None) for index in rest)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0 or not whole:
        return None
    return len(rest), number


def ask_for_no_weights_(graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
    """Let attention compute no weights that nobody looks at."""
    for node in graph.nodes:
        if node.op != "call_module" or type(layers[str(node.target)]) is not nn.MultiheadAttention:
            continue
        whole = any(user.target is not getitem for user in node.users)
        taken = {user.args[1] for user in node.users if user.users}
        if len(node.args) < 5 and not whole and taken <= {0}:
            node.kwargs = {**node.kwargs, "need_weights": False}


class Parts(torch.autograd.Function):
    """Views of all parts of a value along an axis; their gradients lie as the value does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> tuple[Tensor, ...]:
        """The views."""
        ctx.axis, ctx.shape, ctx.order = axis, x.shape, _order(x)
        ctx.set_materialize_grads(False)
        return x.unbind(axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        """One gradient, written once."""
        there = [grad for grad in grads if grad is not None]
        if not there:
            return None, None
        shape, order = ctx.shape, ctx.order
        back = sorted(range(len(order)), key=order.__getitem__)
        found = there[0].new_empty([shape[at] for at in order]).permute(back)
        for place, grad in zip(found.unbind(ctx.axis), grads, strict=True):
            place.zero_() if grad is None else place.copy_(grad)
        return found, None


def _order(x: Tensor) -> list[int]:
    """The axes from the one whose steps in memory are the longest."""
    strides: Sequence[int] = x.stride()
    return sorted(range(x.ndim), key=lambda axis: -strides[axis])


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.LayerNorm | nn.RMSNorm)
