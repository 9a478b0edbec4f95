"""An ordinary nn.Module as a list of layers that can run for many workers at once."""

import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from partavg.engines.fused import layers, pool
from partavg.engines.fused.join import join_, joined, pool_first_
from partavg.engines.fused.rows import Rows

_STATELESS: tuple[type[nn.Module], ...] = (
    nn.ELU,
    nn.Flatten,
    nn.GELU,
    nn.Hardswish,
    nn.Identity,
    nn.LeakyReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softmax,
    nn.Softplus,
    nn.Tanh,
    nn.Unflatten,
    nn.ZeroPad2d,
)
"""Layers without parameters, buffers or chance: vmap runs them as they are."""

_FUNCTIONS = {
    getattr(namespace, name)
    for namespace, names in (
        (operator, "add sub mul truediv neg pow matmul floordiv getitem iadd"),
        (
            torch,
            "add sub mul div neg abs exp log sqrt square pow clamp matmul bmm cat stack chunk "
            "split flatten reshape permute transpose squeeze unsqueeze mean sum amax relu sigmoid "
            "tanh softmax log_softmax zeros_like ones_like",
        ),
        (
            F,
            "relu relu6 leaky_relu elu gelu silu sigmoid tanh softmax log_softmax softplus "
            "linear pad normalize",
        ),
    )
    for name in names.split()
}
_METHOD_NAMES = (
    "add sub mul div neg abs exp log sqrt square pow clamp matmul bmm chunk split flatten reshape "
    "view permute transpose squeeze unsqueeze mean sum amax relu sigmoid tanh softmax log_softmax "
    "expand contiguous t size"
)
_METHODS = frozenset(_METHOD_NAMES.split())
_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


class Uncovered(Exception):
    """A part of a model that the engine does not know; the text says which."""


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a buffer that the module changes itself must not go unseen


class Program:
    """Runs a module on activations [m, n, …], with parameters of their own for each worker."""

    def __init__(self, module: nn.Module) -> None:
        try:
            module = copy.deepcopy(module)  # tracing calls its forward pass
            self._graph = _Tracer().trace(module)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Uncovered(f"its forward pass cannot be traced: {reason}") from error
        self._layers = dict(module.named_modules(remove_duplicate=False))
        for name, layer in self._layers.items():
            if any(isinstance(buffer, fx.Proxy) for buffer in layer._buffers.values()):
                raise Uncovered(f"layer {name or type(layer).__name__} replaces its buffers")
        for node in self._graph.nodes:
            if (problem := self._problem(node)) is not None:
                raise Uncovered(problem)
        join_(self._graph, self._layers)
        pool_first_(self._graph, self._layers)
        self._drop_unused()
        self._convs = self._convs_after_norms()

    @property
    def brief(self) -> bool:
        """Whether kernels end so soon that others had better run beside them.

        Half the workers beside the other half: 5 % less time for ResNet-20, but 3 to 20 % more for
        LEAF's CNN, VGG-11 and LSTM.
        """
        few = sum(p.numel() for p in self._layers[""].parameters()) < 1 << 20
        return few and any(isinstance(layer, nn.Conv2d) for layer in self._layers.values())

    @property
    def repeats(self) -> bool:
        """Whether a parameter is used more than once: autograd adds its gradients up."""
        found = [id(tensor) for node in self._graph.nodes for tensor in self._tensors(node)]
        return len(found) > len(set(found))

    def norms(self) -> Iterator[str]:
        """The names of the BatchNorm layers, each as often as it is called."""
        return (node.args[0] for node in self._graph.nodes if node.target is joined)

    def __call__(self, inputs: Tensor, rows: Rows) -> Any:
        """The module's outputs for all workers."""
        values: dict[fx.Node, Any] = {}
        measured: dict[fx.Node, Any] = {}  # statistics of what convolutions gave
        for node in self._graph.nodes:
            if node in values:
                continue
            args, kwargs = (
                fx.node.map_arg(given, values.__getitem__) for given in (node.args, node.kwargs)
            )
            if node.op == "output":
                return args[0]
            if node.op == "placeholder":
                values[node] = rows.cast(inputs)
            elif isinstance(self._layer(node), nn.Conv2d):
                found = layers.conv(self._layer(node), rows, str(node.target), *args)
                values[node], values[node.args[0]], measured[node] = found
            elif node.target is joined:
                known = measured.get(node.args[1])
                if known is not None and not _once(node.args[1], node):
                    known = known._replace(left=None)
                conv = self._convs.get(node)
                both = None if conv is None else self._norm_conv(node, rows, args, known)
                if conv is None or both is None:
                    values[node] = self._norm(rows, known, *args)
                else:
                    values[conv], values[node], measured[conv] = both
            else:
                values[node] = self._run(node, rows, args, kwargs)
        raise AssertionError("a graph ends with its output")

    def _norm_conv(self, node: fx.Node, rows: Rows, args: Any, known: Any) -> Any:
        """What a BatchNorm and the convolution after it give, in one step where that can be."""
        name, x, residual, relu = args
        names = name, str(self._convs[node].target)
        both = self._layers[name], self._layers[names[1]]
        if residual is not None and residual.shape != x.shape:
            return None
        alone = len(node.users) == 1
        return layers.norm_conv(both, rows, names, x, residual, relu, known, alone=alone)

    def _norm(
        self, rows: Rows, known: Any, name: str, x: Tensor, residual: Tensor | None, relu: bool
    ) -> Tensor:
        layer = self._layers[name]
        if residual is None or residual.shape == x.shape:
            return layers.batch_norm(layer, rows, name, x, residual, relu, known)
        y = layers.batch_norm(layer, rows, name, x, None, False, known) + residual
        return F.relu(y) if relu else y

    def _drop_unused(self) -> None:
        """Convolutions whose outputs nobody uses have no gradient to send back."""
        for node in reversed(self._graph.nodes):
            if isinstance(self._layer(node), nn.Conv2d) and not node.users:
                self._graph.erase_node(node)

    def _convs_after_norms(self) -> dict[fx.Node, fx.Node]:
        """The convolutions that use a joined BatchNorm before all its other users."""
        order = {node: place for place, node in enumerate(self._graph.nodes)}
        firsts = {
            node: min(node.users, key=order.__getitem__)
            for node in order
            if node.target is joined and node.users
        }
        return {
            n: first for n, first in firsts.items() if isinstance(self._layer(first), nn.Conv2d)
        }

    def _run(self, node: fx.Node, rows: Rows, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node.op == "get_attr":
            return rows.cast(rows.tensor(target))
        if node.op == "call_module":
            layer = self._layers[target]
            if isinstance(layer, pool.LAYERS):
                return pool.pool(layer, *args)
            if isinstance(layer, _STATELESS):
                return _batched(_pure(layer), args, kwargs)
            return layers.run(layer, rows, target, *args, **kwargs)
        if target in pool.FUNCTIONS:
            return pool.pool(target, *args, **kwargs)
        if target in _DROPOUTS:
            return rows.dropout(target, *args, **kwargs)
        if target is getattr or target == "size":  # the shape that one worker sees
            shape = args[0].shape[1:]
            return shape if target is getattr or len(args) == 1 else shape[args[1]]
        function = getattr(Tensor, target) if node.op == "call_method" else target
        return _batched(operator.add if function is operator.iadd else function, args, kwargs)

    def _problem(self, node: fx.Node) -> str | None:
        """What the engine does not know about a node."""
        target: Any = node.target
        known, what = True, ""
        if node.op == "call_module":
            layer = self._layers[target]
            what = f"layer {target} ({type(layer).__name__})"
            known = isinstance(layer, _STATELESS + pool.LAYERS) or layers.covered(layer)
        elif node.op == "call_function":
            what = f"function {getattr(target, '__name__', target)}"
            known = target in _FUNCTIONS or target in _DROPOUTS + pool.FUNCTIONS
            known = known or (target is getattr and node.args[1] == "shape")
        elif node.op == "call_method":
            what, known = f"method {target}", target in _METHODS
        if not known:
            return f"{what} is not covered"
        if self._in_place(node) and len(node.all_input_nodes[0].users) > 1:
            return f"{what} changes a value in place that is used elsewhere, too"
        return None

    def _tensors(self, node: fx.Node) -> list[Tensor]:
        """The parameters that a node uses; or a buffer."""
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            return [getattr(self._layers[owner], name)]
        layer = self._layers.get(str(node.args[0] if node.target is joined else node.target))
        return [] if layer is None else list(layer.parameters())

    def _layer(self, node: fx.Node) -> nn.Module | None:
        return self._layers[str(node.target)] if node.op == "call_module" else None

    def _in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self._layers[str(node.target)], "inplace", False))
        return node.target is operator.iadd or bool(node.kwargs.get("inplace"))


def _once(node: fx.Node, user: fx.Node) -> bool:
    """Whether a value is used by this node only, and only once."""
    return len(node.users) == 1 and sum(arg is node for arg in user.args) == 1


def _pure(layer: Any) -> Any:
    """The layer, without writing into its input, which another function may have saved."""
    if getattr(layer, "inplace", False):
        layer.inplace = False  # of the program's own copy
    return layer


def _batched(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function for every worker: all its tensors have the workers as their first axis."""
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    leaves, form = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        again, named = pytree.tree_unflatten(filled, form)
        return function(*again, **named)

    if not places:
        return function(*args, **kwargs)
    return vmap(call)(*(leaves[place] for place in places))
