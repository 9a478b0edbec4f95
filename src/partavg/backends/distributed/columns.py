"""The tensors of a module as the columns of a row, wherever they lie."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.backends.distributed.box import Box, held, is_distributed
from partavg.core.layout import Layout
from partavg.core.partition import Span


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
        start, columns = self.held.starts[number], flat(held(self._tensors[number]()))
        if len(columns) != self.held.sizes[number]:  # messages of other lengths end in gloo's abort
            raise ValueError(
                f"tensor {self.layout.names[number]!r} has another size than at attach: detach, "
                f"and attach again"
            )
        return columns[None, span.start - start : span.stop - start]

    def flatten(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> Float[Tensor, "1 d"]:
        """A copy of all columns."""
        return torch.cat([flat(held(tensor())).to(device, dtype) for tensor in self._tensors])[None]

    def _number(self, span: Span) -> int:
        """The tensor that a span lies in; those of which nothing is held here have no columns."""
        return bisect_right(self.held.starts, span.start) - 1


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
