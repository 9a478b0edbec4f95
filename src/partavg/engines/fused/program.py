"""An ordinary nn.Module as a list of steps that can run for many workers at once."""

import copy
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from partavg.core.seeds import OTHERS, moved, seeded
from partavg.engines.fused import coverage
from partavg.engines.fused.convolution.operation import Convolved, norm_then_convolve
from partavg.engines.fused.fusion import (
    adds,
    fuse_norms_,
    fused_group_norm,
    fused_norm,
    pool_before_relu_,
)
from partavg.engines.fused.norm import operation as norm
from partavg.engines.fused.norm.parameters import NormParameters
from partavg.engines.fused.recompute import Piece, cut
from partavg.engines.fused.rows import Rows
from partavg.engines.fused.token_fusion import (
    added_norm,
    ask_for_no_weights_,
    fuse_token_norms_,
    join_parts_,
    parts,
)
from partavg.engines.fused.token_norm import operation as token_norm
from partavg.engines.model import RowModel
from partavg.sentences import reason


class Uncovered(Exception):
    """A part of a model that the engine does not know; the text says which."""


class Addition(NamedTuple):
    """What is added to a convolution's outputs, and the step that does."""

    other: fx.Node
    sum: fx.Node


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a buffer that the module changes itself must not go unseen

    def __init__(self) -> None:
        super().__init__(autowrap_functions=coverage.WHOLE)


class Program:
    """Runs a module on activations [m, n, …], with parameters of their own for each worker."""

    @staticmethod
    def of(model: RowModel) -> "Program":
        """That of a model's module, which nobody changes: made once, by whoever asks first."""
        if (found := _PROGRAMS.get(model)) is None:
            found = _PROGRAMS[model] = Program(model.skeleton)
        return found

    def __init__(self, module: nn.Module) -> None:
        module = copy.deepcopy(module)  # tracing calls its forward pass
        self._graph = _traced(module)
        self._layers = dict(module.named_modules(remove_duplicate=False))
        for name, layer in self._layers.items():
            buffers = layer.named_buffers(recurse=False, remove_duplicate=False)
            if any(isinstance(buffer, fx.Proxy) for _, buffer in buffers):
                raise Uncovered(f"layer {name or type(layer).__name__} replaces its buffers")
        for node in list(self._graph.nodes)[1:]:
            if node.op == "placeholder" and node.users:
                raise Uncovered(
                    f"argument {node.target}: inputs of several tensors are not covered"
                )
        for node in self._graph.nodes:
            if (problem := self._problem(node)) is not None:
                raise Uncovered(problem)
        fuse_norms_(self._graph, self._layers)
        pool_before_relu_(self._graph, self._layers)
        ask_for_no_weights_(self._graph, self._layers)
        fuse_token_norms_(self._graph, self._layers)
        join_parts_(self._graph)
        self._drop_unused()
        self._convs, self._sums = self._convs_after_norms(), self._convs_before_additions()

    def __str__(self) -> str:
        """All steps, a line for each."""
        return str(self._graph)

    @property
    def has_short_kernels(self) -> bool:
        """Whether kernels end so soon that others had better run beside them.

        Half the workers beside the other half: 5 % less time for ResNet-20, but 3 to 20 % more for
        LEAF's CNN, VGG-11 and LSTM.
        """
        few = sum(p.numel() for p in self._layers[""].parameters()) < 1 << 20
        return few and any(isinstance(layer, nn.Conv2d) for layer in self._layers.values())

    @cached_property
    def shares_parameters(self) -> bool:
        """Whether a parameter is used more than once: autograd adds its gradients up."""
        return any(count > 1 for count in self._uses().values())

    @property
    def can_recompute(self) -> bool:
        """Whether there are pieces that can run twice; BatchNorm would count it twice."""
        kinds = {type(layer) for layer in self._layers.values()}
        pieces = any(node.target is added_norm for node in self._graph.nodes)
        return (pieces or nn.TransformerEncoder in kinds) and not any(self.norms())

    @property
    def convolutions(self) -> int:
        """How often one is called."""
        return sum(isinstance(self._layer(node), nn.Conv2d) for node in self._graph.nodes)

    def used_once(self) -> set[str]:
        """The names of the parameters that are used in one place: nobody adds gradients up."""
        uses = self._uses()
        tensors = self._layers[""].named_parameters()
        return {name for name, p in tensors if uses[id(p)] == 1}

    def multiplied_once(self) -> set[str]:
        """The names of the weights of products that are used there alone."""
        weights = {
            id(getattr(layer, name, None))
            for layer in self._layers.values()
            for name in ("weight", "in_proj_weight")
            if isinstance(layer, nn.Linear | nn.MultiheadAttention)
        }
        tensors = dict(self._layers[""].named_parameters())
        return {name for name in self.used_once() if id(tensors[name]) in weights}

    @cached_property
    def head(self) -> str | None:
        """The name of the linear layer that gives the outputs, if one does."""
        return None if self._head is None else str(self._head.target)

    @cached_property
    def _head(self) -> fx.Node | None:
        """The step that it is."""
        *_, output = self._graph.nodes
        last = output.args[0]
        if not isinstance(last, fx.Node) or len(last.users) > 1 or not last.args:
            return None
        return last if isinstance(self._layer(last), nn.Linear) else None

    def _uses(self) -> Counter[int]:
        """How often parameters are used."""
        return Counter(id(tensor) for node in self._graph.nodes for tensor in self._tensors(node))

    def norms(self) -> Iterator[str]:
        """The names of the BatchNorm layers, each as often as it is called."""
        return (node.args[0] for node in self._graph.nodes if node.target is fused_norm)

    def __call__(self, inputs: Tensor, rows: Rows, *, headless: bool = False) -> Any:
        """The module's outputs for all workers, or what its head is given."""
        *nodes, end = self._graph.nodes
        if headless and self._head is not None:
            end = self._head
            nodes.remove(end)
        values: dict[fx.Node, Any] = {}
        pieces = cut(nodes, end.all_input_nodes) if rows.recompute else []
        if len(pieces) > 1:
            for piece in pieces:
                given = {node: values[node] for node in piece.needs}
                found = rows.again(partial(self._run_piece, piece, given, inputs, rows))
                values |= zip(piece.gives, found, strict=True)
        else:
            self._run_all(nodes, values, inputs, rows)
        return fx.node.map_arg(end.args[0], values.__getitem__)

    def _run_piece(
        self, piece: Piece, given: dict[fx.Node, Any], inputs: Tensor, rows: Rows
    ) -> tuple[Any, ...]:
        """What a piece gives to others."""
        values = dict(given)
        self._run_all(piece.nodes, values, inputs, rows)
        return tuple(values[node] for node in piece.gives)

    def _run_all(
        self, nodes: Sequence[fx.Node], values: dict[fx.Node, Any], inputs: Tensor, rows: Rows
    ) -> None:
        """Run steps one after another, and note what they give."""
        statistics: dict[fx.Node, Any] = {}  # of what convolutions gave
        for node in nodes:
            if node in values:
                continue
            args, kwargs = (
                fx.node.map_arg(given, values.__getitem__) for given in (node.args, node.kwargs)
            )
            if node.op == "placeholder":
                values[node] = rows.cast(inputs)
            elif node.op == "get_attr":
                values[node] = self._attribute(str(node.target), rows)
            elif node.target is fused_norm:
                self._run_norm(node, rows, args, values, statistics)
            else:
                found = self._run(node, rows, args, kwargs, **self._added(node, rows, values))
                if isinstance(found, Convolved):
                    source: Any = node.args[0]
                    values[node], values[source], statistics[node], summed = found
                    if summed:
                        values[self._sums[node].sum] = found.y
                else:
                    values[node] = found

    def _added(self, node: fx.Node, rows: Rows, values: dict[fx.Node, Any]) -> dict[str, Tensor]:
        """For a convolution, what is added to its outputs in this piece."""
        known = node in self._sums and not rows.recompute
        other = values[self._sums[node].other] if known else None
        return {"added": other} if isinstance(other, Tensor) else {}

    def _attribute(self, name: str, rows: Rows) -> Tensor:
        """A parameter, a buffer, or a constant that the forward pass made."""
        if not rows.has(name):
            return rows.cast(rows.for_all(getattr(self._layers[""], name)))
        return rows.cast(rows.tensor(name))

    def _run(self, node: fx.Node, rows: Rows, args: Any, kwargs: Any, **added: Tensor) -> Any:
        """What the operation for a node gives."""
        layer, target = self._layer(node), node.target
        if target is added_norm:
            return token_norm.add_and_run(self._layers[args[0]], rows, *args)
        if target is fused_group_norm:
            return norm.run_groups(self._layers[args[0]], rows, *args)
        if target is parts:
            return parts(*args)
        if target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]  # of several values, not of one
        covered = coverage.find(node, layer)
        assert covered is not None  # seen by _problem
        if layer is not None:
            return covered.run(layer, rows, str(target), *args, **kwargs, **added)
        function = getattr(Tensor, str(target)) if node.op == "call_method" else target
        return covered.run(function, rows, "", *args, **kwargs)

    def _run_norm(
        self,
        node: fx.Node,
        rows: Rows,
        args: Any,
        values: dict[fx.Node, Any],
        statistics: dict[fx.Node, Any],
    ) -> None:
        """A BatchNorm and what follows it; in one step with the convolution after it, if it can."""
        (name, x, residual, relu), conv = args, self._convs.get(node)
        source: Any = node.args[1]
        layer, known = self._layers[name], statistics.get(source)
        if known is not None and not _once(source, node):
            known = known._replace(deferred=None)
        if conv is not None:
            both = norm_then_convolve(
                layer,
                NormParameters.of(rows, name),
                self._layers[str(conv.target)],
                rows.tensor_of(str(conv.target), "weight"),
                x,
                residual,
                relu=relu,
                statistics=known,
                alone=len(node.users) == 1,
                places=rows.places(str(conv.target), name),
            )
            if both is not None:
                values[conv], values[node], statistics[conv], _ = both
                return
        run = coverage.COVERED[type(layer)].run
        found = run(layer, rows, name, x, residual, relu=relu, statistics=known)
        values[node], values[source] = found

    def _drop_unused(self) -> None:
        """Convolutions whose outputs nobody uses have no gradient to send back."""
        for node in reversed(self._graph.nodes):
            if isinstance(self._layer(node), nn.Conv2d) and not node.users:
                self._graph.erase_node(node)

    def _convs_after_norms(self) -> dict[fx.Node, fx.Node]:
        """The convolutions that use a fused BatchNorm before all its other users."""
        order = {node: place for place, node in enumerate(self._graph.nodes)}
        firsts = {
            node: min(node.users, key=order.__getitem__)
            for node in order
            if node.target is fused_norm and node.users
        }
        return {
            n: first for n, first in firsts.items() if isinstance(self._layer(first), nn.Conv2d)
        }

    def _convs_before_additions(self) -> dict[fx.Node, Addition]:
        """The convolutions whose outputs are but added to what is there already."""
        order = {node: place for place, node in enumerate(self._graph.nodes)}
        found = {}
        for node in order:
            (*_, last) = node.users or (node,)
            if (
                not isinstance(self._layer(node), nn.Conv2d)
                or len(node.users) > 1
                or not adds(last)
            ):
                continue
            (other,) = (arg for arg in last.args if isinstance(arg, fx.Node) and arg is not node)
            if order[other] < order[node]:
                found[node] = Addition(other, last)
        return found

    def _problem(self, node: fx.Node) -> str | None:
        """What the engine does not know about a node."""
        layer, target = self._layer(node), node.target
        if layer is not None:
            what = f"layer {target} ({type(layer).__name__})"
        elif node.op == "call_function":
            what = f"function {getattr(target, '__name__', target)}"
        elif node.op == "call_method":
            what = f"method {target}"
        else:
            return None
        if coverage.find(node, layer) is None:
            return f"{what} is not covered"
        if self._in_place(node) and len(node.all_input_nodes[0].users) > 1:
            return f"{what} changes a value in place that is used elsewhere, too"
        return None

    def _tensors(self, node: fx.Node) -> list[Tensor]:
        """The parameters that a node uses; or a buffer."""
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            return [getattr(self._layers[owner], name)]
        stands = node.target in (fused_norm, fused_group_norm, added_norm)
        name = str(node.args[0] if stands else node.target)
        layer = self._layers.get(name)
        return [] if layer is None else list(layer.parameters())

    def _layer(self, node: fx.Node) -> nn.Module | None:
        return self._layers[str(node.target)] if node.op == "call_module" else None

    def _in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self._layers[str(node.target)], "inplace", False))
        return node.target is operator.iadd or bool(node.kwargs.get("inplace"))


_PROGRAMS: WeakKeyDictionary[RowModel, Program] = WeakKeyDictionary()


def _traced(module: nn.Module) -> fx.Graph:
    """The graph of a module, whose forward pass must not depend on anything but its input."""
    device = next(module.parameters()).device
    with seeded(0, device, OTHERS):
        before = moved(device)
        tracer = _Tracer()
        try:
            with _made_in(tracer):
                graph = tracer.trace(module)
        except Exception as error:
            raise Uncovered(f"its forward pass cannot be traced: {reason(error)}") from error
        if drawn := moved(device, before):
            raise Uncovered(f"it draws random numbers from {' and '.join(drawn)}")
    return graph


def _once(node: fx.Node, user: fx.Node) -> bool:
    """Whether a value is used by this node only, and only once."""
    return len(node.users) == 1 and sum(arg is node for arg in user.args) == 1


@contextmanager
def _made_in(tracer: fx.Tracer) -> Iterator[None]:
    """While torch makes tensors whose sizes depend on an input, steps of a graph make them."""

    def seen(make: Any) -> Any:
        def made(*args: Any, **options: Any) -> Any:
            given: list[Any] = []
            fx.node.map_aggregate((args, options), given.append)
            if any(isinstance(value, fx.Proxy) for value in given):
                return tracer.create_proxy("call_function", make, args, options)
            return make(*args, **options)

        return made

    makers = {name: getattr(torch, name) for name in coverage.MAKERS.split()}
    try:
        for name, make in makers.items():
            setattr(torch, name, seen(make))
        yield
    finally:
        for name, make in makers.items():
            setattr(torch, name, make)
