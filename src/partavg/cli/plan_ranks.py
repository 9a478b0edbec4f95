"""What `partavg plan` says of a simulation whose workers are dealt over ranks."""

from partavg.cost import Cost
from partavg.cost.dealt import Dealt
from partavg.cost.setting import Setting
from partavg.folder import Row


def numbers(
    dealt: Dealt, setting: Setting, sizes: tuple[int, int], step_ms: float, chosen: Cost
) -> Row:
    """Rows, efficiency and what clients keep; `sizes` are those of what is shared and local."""
    kept = {"bank_bytes": dealt.bank(setting, *sizes)} if dealt.clients else {}
    return {
        "ranks": dealt.ranks,
        "rows": list(dealt.rows),
        "idle": dealt.idle,
        "efficiency": dealt.efficiency(step_ms / 1e3, chosen),
        **kept,
    }


def sentences(found: Row) -> list[str]:
    """The same, for people; nothing where there are no ranks."""
    if not found:
        return []
    ranks, efficiency, rows = found["ranks"], found["efficiency"], found["rows"]
    said = [
        f"{ranks} ranks are {ranks * efficiency:.3g} times as fast as one process, an efficiency "
        f"of {_percent(efficiency)}, as far as rows decide how long a step takes."
    ]
    if found["idle"] > 0:
        less, more = ranks * rows[-1], ranks * rows[0]
        said.append(
            f"Ranks of {rows[-1]} rows wait for those of {rows[0]}, {_percent(found['idle'])} of "
            f"all time: {less} or {more} workers would be even."
        )
    if "bank_bytes" in found:
        said.append(
            f"Clients that are not active keep up to {found['bank_bytes'] / 1e6:,.0f} MB on each "
            f"rank, once all have been active (participation.bank)."
        )
    return said


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
