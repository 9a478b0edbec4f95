"""A user's model as one worker: its tensors are the columns, wherever they lie."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from partavg.backends.distributed.box import held
from partavg.backends.distributed.columns import Columns
from partavg.backends.distributed.memory_store import MemoryStore, pinned
from partavg.core.layout import Layout
from partavg.core.partition import Span
from partavg.core.solver import Solver, State
from partavg.core.views import Views
from partavg.core.workers import Workers


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
    def of(cls, module: nn.Module, parts: int, *, sharded: bool = False) -> "ModuleRow":
        """The worker that a module is, or of one that may be `sharded` what is held here.

        A solver's memory comes with `start_memory_`.
        """
        params = _trainable(module)
        dtype = torch.float32
        for parameter in params.values():
            dtype = torch.promote_types(dtype, parameter.dtype)
        tensors = {name: partial(_itself, parameter) for name, parameter in params.items()}
        none = held(next(iter(params.values()))).new_empty(1, 0, dtype=dtype)
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
            param_columns=Columns(tensors, sharded=sharded),
            buffer_columns=Columns(_buffers(module), sharded=sharded),
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
        self.memory = pinned(solver.init(columns.flatten(kind, place), columns.held), device)

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
        self.param_columns.replace_(place, partial(_itself, parameter))

    def shared_parameters(self) -> list[tuple[nn.Parameter, Span]]:
        """The parameters that are shared, and their columns."""
        layout = self.param_columns.held
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

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds the model together with others."""
        return any((*self.param_columns.placements, *self.buffer_columns.placements))

    def placements(self) -> str:
        """How tensors are sharded, in a few words."""
        every = (*self.param_columns.placements, *self.buffer_columns.placements)
        counts = Counter(text or "whole" for text in every)
        text = ", ".join(f"{count} × {text}" for text, count in counts.items())
        return f"{text} ({hashlib.sha256(repr(every).encode()).hexdigest()[:8]})"

    def places(self) -> str:
        """Where the shards held here lie, in a few words."""
        boxes = repr((self.param_columns.boxes, self.buffer_columns.boxes)).encode()
        return f"places {hashlib.sha256(boxes).hexdigest()[:8]}"

    def whole(
        self, spans: Sequence[Span], buffer_spans: Sequence[Span]
    ) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """Those spans of which every rank has its own copy."""
        return self.param_columns.whole(spans), self.buffer_columns.whole(buffer_spans)

    def load_(self, saved: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        if self.store is not None:
            self.store.forget()
        Workers.load_(self, saved)

    def state(self, *, whole: bool = True) -> dict[str, Any]:
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
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:
            raise ValueError(
                f"tensor {name!r} is on the meta device, which has no numbers: call "
                f"model.to_empty(device=…) and load or initialize it before attach"
            )
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
    buffer: Tensor | None = getattr(home, key, None)
    if buffer is None:
        raise ValueError(
            f"buffer {key!r} is gone from a {type(home).__name__} of the model since attach: "
            f"detach, and attach again"
        )
    return buffer


def _itself(tensor: Tensor) -> Tensor:
    return tensor
