"""A user's model as one worker: its tensors are the columns, wherever they lie."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partavg.backends.distributed.memory_store import MemoryStore, pinned
from partavg.core.average import Views
from partavg.core.layout import Layout
from partavg.core.partition import Span
from partavg.core.solver import Solver, State
from partavg.core.workers import Workers


class Columns:
    """Named tensors as the columns of a row, without a copy of them.

    Tensors are looked up every time, since a module may put another in the place of one. A column's
    place follows the order of memory, so that a tensor of any memory format is one range.
    """

    def __init__(self, tensors: Mapping[str, Callable[[], Tensor]]) -> None:
        self._tensors = list(tensors.values())
        self.layout = Layout.of({name: tensor() for name, tensor in tensors.items()})
        for name, tensor in tensors.items():
            _check(name, tensor())

    def tensors(self) -> list[Tensor]:
        """The tensors themselves, as they are now."""
        return [tensor() for tensor in self._tensors]

    def replace_(self, place: int, tensor: Callable[[], Tensor]) -> None:
        """Let another tensor of the same shape, type and strides have the place of one."""
        self._tensors[place] = tensor

    def cut(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """The same columns in spans that each lie within one tensor."""
        ends = [a + n for a, n in zip(self.layout.starts, self.layout.sizes, strict=True) if n]
        cuts = []
        for start, stop in spans:
            inner = [end for end in ends if start < end < stop]
            cuts += list(map(Span, [start, *inner], [*inner, stop]))
        return tuple(cuts)

    def view(self, span: Span) -> Float[Tensor, "1 _"]:
        """The columns of a span that lies within one tensor."""
        number = bisect_right(self.layout.starts, span.start) - 1
        start = self.layout.starts[number]
        return flat(self._tensors[number]())[None, span.start - start : span.stop - start]

    def flatten(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> Float[Tensor, "1 d"]:
        """A copy of all columns."""
        return torch.cat([flat(tensor()).to(device, dtype) for tensor in self._tensors])[None]


@dataclass(slots=True)
class ModuleRow(Workers):
    """One worker whose parameters stay in a module: `params` and `buffers` have no columns."""

    module: nn.Module = field(kw_only=True)
    trainable: list[nn.Parameter] = field(kw_only=True)
    param_columns: Columns = field(kw_only=True)
    buffer_columns: Columns = field(kw_only=True)
    local: frozenset[str] = field(default=frozenset(), kw_only=True)
    """The names of parameters and buffers that are this worker's own."""
    store: MemoryStore | None = field(default=None, kw_only=True)
    """Keeps the solver's memory, where not as it is computed with."""

    @classmethod
    def of(cls, module: nn.Module, parts: int) -> "ModuleRow":
        """The worker that a module is; a solver's memory comes with `start_memory_`."""
        params = _trainable(module)
        dtype = torch.float32
        for parameter in params.values():
            dtype = torch.promote_types(dtype, parameter.dtype)
        columns = Columns({name: parameter.detach for name, parameter in params.items()})
        none = next(iter(params.values())).new_empty(1, 0, dtype=dtype)
        clock = torch.zeros(1, parts, dtype=torch.float64, device=none.device)
        return cls(
            none,
            none,
            {},
            clock,
            clock.clone(),
            clock[:, :1].clone(),
            module=module,
            trainable=list(params.values()),
            param_columns=columns,
            buffer_columns=Columns(_buffers(module)),
        )

    def start_memory_(self, solver: Solver, memory: str = "full") -> None:
        """Begin the memory of a solver, from a model that is the same on all ranks by now."""
        if _remembers_nothing(solver):
            return
        columns, kind, device = self.param_columns, self.params.dtype, self.params.device
        place, computed = torch.device("cpu") if "host" in memory else device, kind
        if "params" in memory:
            kind = reduce(torch.promote_types, (p.dtype for p in self.trainable))
        if (kind, place) != (computed, device):
            self.store = MemoryStore(computed, device)
        self.memory = pinned(solver.init(columns.flatten(kind, place), columns.layout), device)

    def recall(
        self, spans: Sequence[Span], *, to_send: bool = False
    ) -> tuple[State, Sequence[Span]]:
        """The solver's memory of some columns; to send them, none that is on the host is needed."""
        if self.store is None or (to_send and self.store.is_far(self.memory)):
            return self.memory, spans
        return self.store.recall(self.memory, spans)

    def remember_(self, spans: Sequence[Span], recalled: State) -> None:
        """Keep what became of the memory of some columns."""
        if self.store is not None:
            self.store.put_back_(self.memory, spans, recalled)

    def fetch(self, due: Sequence[Sequence[Span]]) -> None:
        """Let the memory of columns that are averaged next be on its way."""
        if self.store is not None:
            self.store.fetch(self.memory, due)

    def remember_start_(self) -> None:
        """Keep the start, which all ranks have in common, for an Aggregate."""
        self.common = self.param_columns.flatten(self.params.dtype)[0]

    def averaged_buffers(self) -> list[Tensor]:
        """The buffers that are shared."""
        columns = self.buffer_columns
        known = zip(columns.layout.names, columns.tensors(), strict=True)
        return [tensor for name, tensor in known if name not in self.local]

    def take_over_(self, place: int, parameter: nn.Parameter) -> None:
        """Go on with a parameter that a module has in the place of one that it had."""
        self.trainable[place] = parameter
        self.param_columns.replace_(place, parameter.detach)

    def shared_parameters(self) -> list[tuple[nn.Parameter, Span]]:
        """The parameters that are shared, and their columns."""
        layout = self.param_columns.layout
        known = zip(self.trainable, layout.names, layout.starts, layout.sizes, strict=True)
        return [(p, Span(a, a + n)) for p, name, a, n in known if name not in self.local]

    def columns(self, spans: Sequence[Span], buffer_spans: Sequence[Span]) -> tuple[Views, Views]:
        """Views into the module."""
        params = [self.param_columns.view(span) for span in spans]
        return params, [self.buffer_columns.view(span) for span in buffer_spans]

    def describe(self) -> str:
        """What must be the same on all ranks, in a few words."""
        layout, kept = self.param_columns.layout, self.buffer_columns.layout
        lies = [(t.dtype, t.stride()) for t in self.trainable]
        text = repr((layout, kept, lies)).encode()
        return f"{layout.size:,} numbers ({hashlib.sha256(text).hexdigest()[:8]})"

    def load_(self, saved: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        if self.store is not None:
            self.store.forget()
        Workers.load_(self, saved)

    def state(self) -> dict[str, Any]:
        """All but what is in the module."""
        if self.store is not None:
            self.store.wait()
        kept = Workers.state(self)  # super() does not know a class that slots made anew
        return {name: value for name, value in kept.items() if name not in ("params", "buffers")}


def _remembers_nothing(solver: Solver) -> bool:
    none = torch.empty(1, 0)
    return not solver.init(none, Layout((), ()))


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError("the model has no trainable parameters: nothing to average")
    first = next(iter(trainable.values()))
    for name, parameter in trainable.items():
        if parameter.device != first.device:
            raise ValueError(
                f"parameter {name!r} is on {parameter.device}, others are on {first.device}: "
                f"a rank's model must be on one device"
            )
    return trainable


def _buffers(module: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """Buffers that are part of the module's state and have a mean."""
    state = module.state_dict(keep_vars=True).keys()
    return {
        name: partial(_buffer, module.get_submodule(name.rpartition(".")[0]), name.split(".")[-1])
        for name, buffer in module.named_buffers()
        if name in state and buffer.is_floating_point()
    }


def _buffer(home: nn.Module, key: str) -> Tensor:
    buffer: Tensor = getattr(home, key)
    return buffer.detach()


def _check(name: str, tensor: Tensor) -> None:
    if hasattr(tensor, "placements"):  # a DTensor, whose import would take most of a second
        raise ValueError(
            f"tensor {name!r} is sharded over processes: attach needs whole tensors, so use DDP "
            f"instead of FSDP inside a machine"
        )
    if not tensor.is_floating_point():
        raise ValueError(f"tensor {name!r} is {tensor.dtype}: only real numbers can be averaged")
    if not _dense(tensor):
        raise ValueError(f"tensor {name!r} has gaps in memory: make it contiguous()")


def flat(tensor: Tensor) -> Tensor:
    """A view of a tensor in the order of its memory."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,))


def _dense(tensor: Tensor) -> bool:
    """Whether the tensor fills a range of memory, in whatever order of its axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and tensor.numel():
            if stride != expected:
                return False
            expected *= size
    return True
