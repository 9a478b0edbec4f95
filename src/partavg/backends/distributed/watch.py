"""Parameters that are replaced, added, removed or changed while training goes on."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from partavg.backends.distributed.box import is_distributed
from partavg.backends.distributed.likeness import all_alike, rest_alike_, untouched
from partavg.backends.distributed.module_row import ModuleRow
from partavg.core.aggregate import weighted_sum
from partavg.core.plan import Plan

_REMEDY = "detach, and attach again"


class Watch:
    """Compares a model with the one that was attached."""

    def __init__(self, model: nn.Module, row: ModuleRow, is_local: Callable[[str], bool]) -> None:
        self._model, self._row, self._is_local = model, row, is_local
        names = row.param_columns.layout.names
        self._known = {name: _kind(p) for name, p in zip(names, row.trainable, strict=True)}
        self._shapes = [tensor.shape for tensor in row.buffer_columns.tensors()]

    def look_(self) -> str:
        """Take over parameters put in the place of others; what cannot go on, in a sentence."""
        now = dict(self._model.named_parameters())
        for place, (name, kind) in enumerate(self._known.items()):
            if name not in now:
                return f"parameter {name!r} is gone from the model since attach: {_REMEDY}"
            parameter = now[name]
            if (found := _kind(parameter)) != kind:
                was, become = _in_words(kind), _in_words(found)
                how = f"is {become}" if was != become else "lies otherwise in memory"
                return f"parameter {name!r} {how} and was {was} at attach: {_REMEDY}"
            if parameter is not self._row.trainable[place]:
                self._row.take_over_(place, parameter)
        for name, parameter in now.items():
            if parameter.requires_grad and name not in self._known:
                return (
                    f"parameter {name!r} was added or unfrozen since attach, and nobody averages "
                    f"it: {_REMEDY}"
                )
        names = self._row.buffer_columns.layout.names
        for name, tensor, shape in zip(
            names, self._row.buffer_columns.tensors(), self._shapes, strict=True
        ):
            if tensor.shape != shape:
                return f"buffer {name!r} has another shape than at attach: {_REMEDY}"
        return ""

    def parts_alike(self, plan: Plan, groups: Sequence[dist.ProcessGroup]) -> list[int]:
        """The parts that must not be averaged again where they are the same on all ranks.

        That is where an aggregate would not leave them as they are; a mean does.
        """
        if plan.aggregate is weighted_sum:
            return []
        columns = map(self._row.columns, plan.partition.parts, plan.buffer_parts)
        pieces = [[*params, *buffers] for params, buffers in columns]
        same = all_alike(pieces, self._row.steps[0] == 0, groups, self._row.params.device)
        return [part for part, alike in enumerate(same) if alike]

    def rest_alike_(self, groups: Sequence[dist.ProcessGroup]) -> None:
        """Give all ranks the same of what nobody averages: frozen parameters, whole numbers."""
        rest = untouched(self._model, self._row, self._is_local)
        copies = {name: tensor for name, tensor in rest.items() if not is_distributed(tensor)}
        rest_alike_(rest, groups[:1], self._row.params.device)
        rest_alike_(copies, groups[1:], self._row.params.device)  # inside machines and replicas


Kind = tuple[torch.Size, torch.dtype, torch.device, tuple[int, ...]]


def _kind(parameter: nn.Parameter) -> Kind:
    return parameter.shape, parameter.dtype, parameter.device, parameter.stride()


def _in_words(kind: Kind) -> str:
    shape, dtype, device, _ = kind
    return f"{'×'.join(map(str, shape)) or 'a number'} {dtype} on {device}"
