"""A short pass on a CPU as a list of operations, which a replay calls one after another.

Where layers and batches are small, Python and autograd take longer around the operations than the
operations themselves. A replay calls the same ones on the same numbers, and gives the same bits.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from partavg.core.inputs import tensors
from partavg.core.loop import Batch
from partavg.torch_internals import changes_arguments, operations

Gathered = tuple[Tensor, Iterable[tuple[slice, Tensor]]]
"""Losses, columns and their gradients."""
Pass = Callable[[Tensor, Tensor, Batch, int | None], Gathered]
"""(params, buffers, batch, the class to ignore) -> what it gives; updates the buffers."""

_SHORT = 0.03  # seconds that a pass takes at most to be worth it
_KINDS = 8  # of batches that are written down; texts may have as many as there are lengths


class Unrepeatable(Exception):
    """A pass does what a replay would not do again."""


class Replayed:
    """Calls a pass as it is at first; once it knows the rows and the kind of batch, replays it."""

    def __init__(self, call: Pass) -> None:
        self._call = call
        self._rows: object = None
        self._known: dict[object, _Replay] = {}

    def __call__(
        self, params: Tensor, buffers: Tensor, batch: Batch, ignored: int | None
    ) -> Gathered:
        """What the pass returns for these rows and this batch."""
        rows = _place(params), _place(buffers)
        if rows != self._rows:
            self._rows, self._known = rows, {}
        kind = ignored, *map(_kind, _fresh(batch))
        if kind not in self._known and len(self._known) < _KINDS:
            self._known[kind] = _Replay(self._call)
        call = self._known.get(kind, self._call)
        return call(params, buffers, batch, ignored)


class _Replay:
    """The same for one kind of batch.

    The second and third call are timed, the fourth is written down. The fifth does both, and what
    was written down is given up unless all its numbers are the same to the last bit.
    """

    def __init__(self, call: Pass) -> None:
        self._call = call
        self._calls, self._least = 0, float("inf")
        self._program: _Program | None = None

    def __call__(
        self, params: Tensor, buffers: Tensor, batch: Batch, ignored: int | None
    ) -> Gathered:
        given = params, buffers, batch, ignored
        self._calls += 1
        if self._calls in (2, 3):
            began = perf_counter()
            losses, found = self._call(*given)
            found = list(found)
            self._least = min(self._least, perf_counter() - began)
            return losses, found
        if self._calls == 4 and self._least < _SHORT:
            self._program, result = _written_down(self._call, *given)
            return result
        if self._program is None:
            return self._call(*given)
        if self._calls > 5:
            return self._program(batch)
        before = buffers.clone()
        again = (*_flat(self._program(batch)), buffers.clone())
        buffers.copy_(before)
        losses, found = self._call(*given)
        found = list(found)
        if not all(map(_equal, again, (*_flat((losses, found)), buffers))):
            self._program = None
        return losses, found


class _Program:
    """The operations of a pass on rows that stay where they are."""

    def __init__(self, module: fx.GraphModule, columns: list[slice]) -> None:
        self._run, self._columns = module.forward, columns

    def __call__(self, batch: Batch) -> Gathered:
        """What they give for another batch."""
        with torch.no_grad():
            losses, *grads = self._run(*_fresh(batch))
        return losses, list(zip(self._columns, grads, strict=True))


def _written_down(
    call: Pass, params: Tensor, buffers: Tensor, batch: Batch, ignored: int | None
) -> tuple[_Program | None, Gathered]:
    """What a pass gives, while all that it calls is written down, if it can be."""
    seen: list[tuple[Any, Any, Any, Any]] = []
    drawn = torch.get_rng_state()
    with operations(lambda *operation: seen.append(operation)):
        losses, found = call(params, buffers, batch, ignored)
        found = list(found)
    result = losses, found
    try:
        if not torch.equal(drawn, torch.get_rng_state()):
            raise Unrepeatable
        writing = _Writing(_fresh(batch), (params, buffers))
        for operation in seen:
            writing.add(*operation)
        module = writing.finished(_flat(result))
    except Unrepeatable:
        return None, result
    return _Program(module, [columns for columns, _ in found]), result


class _Writing:
    """Writes operations down as a graph, whose inputs are the tensors of a batch.

    All tensors that none of them has made stay what they are, like the rows; views of them are made
    once. The caller keeps all tensors until the end: each is known by its id, or by its memory.
    """

    def __init__(self, fresh: Iterable[Tensor], rows: Iterable[Tensor]) -> None:
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._kept: dict[str, Any] = {}
        self._lasting = set(map(_memory, rows))
        self._made: set[int] = set()
        for place, tensor in enumerate(fresh):
            self._note(tensor, self._graph.placeholder(f"input_{place}"))

    def add(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation, after those before it."""
        given = [one for one in _leaves((args, kwargs)) if isinstance(one, Tensor)]
        if _tells_of_numbers(function, given):
            raise Unrepeatable
        if getattr(function, "is_view", False):
            if not any(id(tensor) in self._nodes for tensor in given):
                return  # of what lasts
            if isinstance(result, Tensor) and _place(result) == _place(given[0]):
                self._nodes[id(result)] = self._nodes[id(given[0])]
                return
        if function is torch.ops.aten.copy_.default and self._is_same(*given):
            return
        node = self._graph.call_function(function, *map_aggregate((args, kwargs), self._named))
        if isinstance(result, Tensor):
            self._note(result, node)
        elif isinstance(result, tuple | list):
            for place, one in enumerate(result):
                self._note(one, self._graph.call_function(operator.getitem, (node, place)))
        elif result is not None:
            raise Unrepeatable

    def finished(self, results: Iterable[Tensor]) -> fx.GraphModule:
        """What gives the results, which must be new each time."""
        nodes = [self._nodes.get(id(result)) for result in results]
        if None in nodes:
            raise Unrepeatable
        self._graph.output(nodes)
        for node in reversed(self._graph.nodes):
            if not node.users and _only_gives(node):
                self._graph.erase_node(node)
        return fx.GraphModule(self._kept or nn.Module(), self._graph)

    def _note(self, found: Any, node: fx.Node) -> None:
        """What a node gives."""
        if isinstance(found, Tensor):
            self._nodes[id(found)] = node
            if found.numel() and _memory(found) not in self._lasting:
                self._made.add(_memory(found))

    def _named(self, given: Any) -> Any:
        """An argument as the graph names it."""
        if not isinstance(given, Tensor) or id(given) in self._nodes:
            return self._nodes.get(id(given), given)
        if _memory(given) in self._made:  # nobody saw where it came from
            raise Unrepeatable
        self._lasting.add(_memory(given))
        name = f"lasting_{len(self._kept)}"
        self._kept[name] = given.detach()
        return self._graph.get_attr(name)

    def _is_same(self, place: Tensor, source: Tensor) -> bool:
        """Whether a tensor is copied onto itself."""
        own = self._nodes.get(id(place))
        return own is not None and own is self._nodes.get(id(source))


def _tells_of_numbers(function: Any, given: list[Tensor]) -> bool:
    """Whether what follows an operation may depend on what a number is, or how many there are."""
    if torch.Tag.dynamic_output_shape in function.tags:
        by_number = function is torch.ops.aten.index.Tensor
        return not by_number or any(one.dtype in (torch.bool, torch.uint8) for one in given[1:])
    return torch.Tag.data_dependent_output in function.tags


def _only_gives(node: fx.Node) -> bool:
    """Whether a node does nothing but give a value."""
    if node.op != "call_function":
        return node.op == "get_attr"
    return node.target is operator.getitem or not changes_arguments(node.target)


def _leaves(values: Any) -> list[Any]:
    found: list[Any] = []
    map_aggregate(values, found.append)
    return found


def _flat(gathered: Gathered) -> tuple[Tensor, ...]:
    losses, found = gathered
    return losses, *(grads for _, grads in found)


def _fresh(batch: Batch) -> Iterator[Tensor]:
    """The tensors of a batch."""
    return chain.from_iterable(tensors(field) for field in batch)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), *_kind(tensor)


def _equal(one: Tensor, other: Tensor) -> bool:
    """To the last bit; what is no number is like itself."""
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
