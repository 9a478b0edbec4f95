"""States of averagers of sharded models, in a shape that torch.distributed.checkpoint can cut anew.

A solver's memory becomes tensors named and sharded like the parameters that it is about. All else
is small, and in one piece: its keys may differ between what is saved and what it is loaded into.
"""

import io
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partavg.backends.distributed.agree import told_by_all
from partavg.backends.distributed.box import held, is_distributed
from partavg.backends.distributed.columns import Columns
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.shard_groups import ShardGroups


def pack(state: dict[str, Any], row: ModuleRow, shards: ShardGroups) -> dict[str, Any]:
    """An averager's state with sharded tensors in the place of this rank's columns."""
    memory = {
        name: _named(row.param_columns, rows) for name, rows in state["row"]["memory"].items()
    }
    rest = {**state, "row": {k: v for k, v in state["row"].items() if k != "memory"}}
    kept = io.BytesIO()
    torch.save({"state": rest, "saved by": dist.get_rank(), "of": list(shards.ranks)}, kept)
    return {"memory": memory, "rest": kept.getvalue()}


def unpack(packed: dict[str, Any], row: ModuleRow, shards: ShardGroups) -> dict[str, Any]:
    """What `pack` was given; of no ranks that are here, unless every rank has loaded its own."""
    if not isinstance(packed, dict) or not {"memory", "rest"} <= packed.keys():
        raise ValueError(
            "this is no state of an averager of a sharded model: give load_state_dict what "
            "state_dict() returned there"
        )
    rest = torch.load(io.BytesIO(packed["rest"]), row.params.device, weights_only=True)
    state: dict[str, Any] = rest["state"]
    state["row"]["memory"] = {
        name: _columns(row.param_columns, tensors) for name, tensors in packed["memory"].items()
    }
    own = (rest["saved by"], rest["of"]) == (dist.get_rank(), list(shards.ranks))
    said = told_by_all((own, bool(state["row"]["pending"])), shards.everyone)
    if all(each for each, _ in said):
        return state
    if any(pending for _, pending in said):
        raise ValueError(
            "averages were on their way when this was saved, and ranks have loaded each other's: "
            "call averager.consensus() before you save for other ranks"
        )
    return {**state, "link": {}, "ranks": []}


def _named(columns: Columns, rows: Tensor) -> dict[str, Tensor]:
    """Columns [1, d] as tensors that are sharded like those that the columns are of."""
    views = columns.held.views(rows[0])
    tensors = zip(columns.tensors(), views.items(), strict=True)
    return {name: _sharded_like(tensor, view) for tensor, (name, view) in tensors}


def _columns(columns: Columns, tensors: dict[str, Tensor]) -> Tensor:
    """What `_named` was given."""
    named = [held(tensors[name]).flatten() for name in columns.held.names]
    return torch.cat(named)[None]


def _sharded_like(tensor: Any, local: Tensor) -> Tensor:
    if not is_distributed(tensor):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local.clone(),  # torch cannot save one that begins in the middle of others' memory
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
