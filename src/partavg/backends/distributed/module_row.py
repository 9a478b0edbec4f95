"""A user's model as one worker: its tensors are the columns, wherever they lie."""

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partavg.backends.distributed.box import Box, held, is_distributed
from partavg.backends.distributed.memory_store import MemoryStore, pinned
from partavg.core.average import Views
from partavg.core.layout import Layout
from partavg.core.partition import Span
from partavg.core.solver import Solver, State
from partavg.core.workers import Workers


class Columns:
    """Named tensors as the columns of a row, without a copy of them.

    Tensors are looked up every time, since a module may put another in the place of one. A column's
    place follows the order of memory, so that a tensor of any memory format is one range. Of a
    tensor that is sharded over ranks the row has the columns held here, in the same order.
    """

    def __init__(
        self, tensors: Mapping[str, Callable[[], Tensor]], *, sharded: bool = False
    ) -> None:
        self._tensors = list(tensors.values())
        found = {name: tensor() for name, tensor in tensors.items()}
        self.layout = Layout.of(found)
        """Of the whole tensors, which is what partitions cut."""
        self.boxes = [_checked(name, tensor, sharded) for name, tensor in found.items()]
        self.held = Layout(self.layout.names, tuple(box.sizes for box in self.boxes))
        """Of what is held here: the columns of the row."""
        self.placements = [_placed(tensor) for tensor in found.values()]
        """How ranks hold each tensor together; nothing where each has its own."""

    def tensors(self) -> list[Tensor]:
        """The tensors themselves, as they are now."""
        return [tensor() for tensor in self._tensors]

    def replace_(self, place: int, tensor: Callable[[], Tensor]) -> None:
        """Let another tensor of the same shape, type and strides have the place of one."""
        self._tensors[place] = tensor

    def cut(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """What is held here of some columns of the layout, in spans each within one tensor."""
        cuts = []
        starts, sizes = self.layout.starts, self.layout.sizes
        for start, stop in spans:
            for number in range(max(0, bisect_right(starts, start) - 1), bisect_left(starts, stop)):
                box, here, first = self.boxes[number], self.held.starts[number], starts[number]
                a = box.before(max(start - first, 0))
                b = box.before(min(stop - first, sizes[number]))
                if a < b:
                    cuts.append(Span(here + a, here + b))
        return tuple(cuts)

    def whole(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Of spans that each lie within one tensor, those of which every rank has its own copy."""
        return tuple(span for span in spans if not self.placements[self._number(span)])

    def view(self, span: Span) -> Float[Tensor, "1 _"]:
        """The columns of a span that lies within one tensor."""
        number = self._number(span)
        start = self.held.starts[number]
        return flat(held(self._tensors[number]()))[None, span.start - start : span.stop - start]

    def flatten(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> Float[Tensor, "1 d"]:
        """A copy of all columns."""
        return torch.cat([flat(held(tensor())).to(device, dtype) for tensor in self._tensors])[None]

    def _number(self, span: Span) -> int:
        """The tensor that a span lies in; those of which nothing is held here have no columns."""
        return bisect_right(self.held.starts, span.start) - 1


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


def _checked(name: str, tensor: Tensor, sharded: bool) -> Box:
    """Where in the tensor that lies which is held here; a ValueError if it cannot be averaged."""
    if is_distributed(tensor) and not sharded:
        raise ValueError(
            f"tensor {name!r} is sharded over ranks: give attach the dimension of your mesh along "
            f"which replicas are averaged, like mesh=mesh['replicate']"
        )
    if not tensor.is_floating_point():
        raise ValueError(f"tensor {name!r} is {tensor.dtype}: only real numbers can be averaged")
    box, here = Box.of(tensor), held(tensor)
    if not _dense(here) or (is_distributed(tensor) and not here.is_contiguous()):
        raise ValueError(f"tensor {name!r} has gaps in memory: make it contiguous()")
    if box.sizes != tuple(here.shape):
        raise ValueError(
            f"tensor {name!r} of shape {list(tensor.shape)} is sharded so that this rank holds "
            f"{list(here.shape)}, and not a range of its axes: shard it with fully_shard or "
            f"parallelize_module"
        )
    return box


def _placed(tensor: Any) -> str:
    if not is_distributed(tensor):
        return ""
    placements = ", ".join(map(repr, tensor.placements))
    return f"{placements} over {' × '.join(map(str, tensor.device_mesh.shape))}"


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
