"""Steps of a program rearranged: a norm and what follows it as one; pooling before ReLU."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


def fused_norm(name: str, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    """Stands in a graph for a BatchNorm layer and what follows it; a program knows what to do."""
    raise AssertionError("a program runs it")


def fused_group_norm(name: str, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    """Stands for a GroupNorm layer in the same way."""
    raise AssertionError("a program runs it")


def fuse_norms_(graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
    """Replace every BatchNorm and GroupNorm, with the addition and the ReLU that use it alone."""
    for norm in list(graph.nodes):
        if norm.op != "call_module" or not _is_norm(layers[str(norm.target)]):
            continue
        last, residual, relu = norm, None, False
        after = _only_user(norm)
        if after is not None and adds(after):
            follows = _only_user(after)
            if follows is not None and _is_relu(follows, layers):
                (residual,) = (arg for arg in after.args if arg is not norm)
                last, relu = follows, True
        elif after is not None and _is_relu(after, layers):
            last, relu = after, True
        grouped = isinstance(layers[str(norm.target)], nn.GroupNorm)
        stands = fused_group_norm if grouped else fused_norm
        given = norm.args[0] if norm.args else norm.kwargs["input"]
        with graph.inserting_before(last):
            new = graph.call_function(stands, (norm.target, given, residual, relu))
        last.replace_all_uses_with(new)
        for node in dict.fromkeys((last, *last.all_input_nodes, norm)):
            if not node.users and node.op != "placeholder":
                graph.erase_node(node)
    graph.lint()


def pool_before_relu_(graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
    """Max pooling, then ReLU, instead of the other way round: the same, on fewer pixels."""
    for relu in list(graph.nodes):
        after = _only_user(relu)
        if after is None or not _is_relu(relu, layers) or not _takes_largest(after, layers):
            continue
        after.replace_input_with(relu, relu.all_input_nodes[0])
        after.replace_all_uses_with(relu)
        relu.replace_input_with(relu.all_input_nodes[0], after)
        after.append(relu)
    graph.lint()


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm)


def adds(node: fx.Node) -> bool:
    """Whether a node adds two different values of the same shape; a number is no value."""
    known: tuple[Any, ...] = (operator.add, operator.iadd, torch.add)
    both = len(node.args) == 2 and all(isinstance(arg, fx.Node) for arg in node.args)
    return node.target in known and both and node.args[0] is not node.args[1] and not node.kwargs


def _is_relu(node: fx.Node, layers: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(layers[str(node.target)]) is nn.ReLU
    return node.op.startswith("call_") and node.target in (F.relu, torch.relu, "relu")


def _takes_largest(node: fx.Node, layers: Mapping[str, nn.Module]) -> bool:
    """Whether a node is max pooling, and gives nothing but the values."""
    if node.op == "call_module":
        layer = layers[str(node.target)]
        return isinstance(layer, nn.MaxPool1d | nn.MaxPool2d) and not layer.return_indices
    plain = len(node.args) < 7 and not node.kwargs.get("return_indices")
    return node.target is F.max_pool2d and plain
