"""What an averager saves beside its row, and what it takes back: only its own kind."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from partavg.backends.distributed.module_row import ModuleRow
from partavg.core.abilities import below, name_of
from partavg.core.solver import Solver
from partavg.core.workers import OLD_COUNT

_ESSENTIAL = ("interval", "parts", "wire", "partition", "a model of")


def settings_of(facts: Mapping[str, object], solver: Solver) -> dict[str, str]:
    """What must be the same where a state is loaded; rates and the like may change."""
    chosen = {name: str(facts[name]) for name in _ESSENTIAL}
    return {**chosen, "solver": " on ".join(_names(solver))}


def _names(solver: Solver | None) -> list[str]:
    return [] if solver is None else [name_of(solver), *_names(below(solver))]


def check_state(state: object, settings: Mapping[str, str], row: ModuleRow) -> None:
    """Raise a ValueError for no state, or that of an averager of another kind."""
    if not isinstance(state, dict) or not {"row", "link"} <= state.keys():
        raise ValueError(
            "this is no state of an averager: give load_state_dict what state_dict() returned"
        )
    saved = state.get("settings", {})  # 0.1 has none
    for name, own in settings.items():
        if saved.get(name, own) != own:
            raise ValueError(
                f"the state was saved with {name} {saved[name]}, and this averager has {own}: "
                f"attach with the same"
            )
    kept: dict[str, Any] = state["row"]
    shapes, others = _shapes(row.memory), _shapes(kept.get("memory", {}))
    if shapes != others or (
        "schedule" not in kept.get("notes", {}) and kept["steps"].shape != row.steps.shape
    ):
        raise ValueError(
            "the state is of an averager with other parts, another solver or another model: "
            "attach with the same"
        )


def _shapes(memory: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(kept.shape) for name, kept in memory.items() if name != OLD_COUNT}
