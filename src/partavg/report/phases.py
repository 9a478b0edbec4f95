"""Time per phase: a bar for each group, cut into the phases of its runs."""

from collections.abc import Sequence
from html import escape
from statistics import mean

from partavg.report.runs import Group

Phases = dict[str, float]


def phases(groups: Sequence[Group]) -> dict[str, Phases]:
    """Seconds in each phase, mean over the seeds, of the groups for which they were taken."""
    found = {}
    for group in groups:
        taken = [s["timings"] for s in group.result.summaries if s.get("timings")]
        names = dict.fromkeys(name for one in taken for name in one)
        if names:
            found[group.name] = {name: mean(one.get(name, 0.0) for one in taken) for name in names}
    return found


def draw(found: dict[str, Phases]) -> str:
    """A table with a bar in each row, and the same in numbers."""
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    longest = max(sum(one.values()) for one in found.values()) or 1.0
    head = "".join(
        f'<th scope="col"><svg class="key" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="p{place}" width="10" height="10"/></svg>{escape(name)}</th>'
        for place, name in enumerate(names)
    )
    rows = []
    for label, one in found.items():
        left, bar = 0.0, []
        for place, name in enumerate(names):
            width = 100 * one.get(name, 0.0) / longest
            bar.append(f'<rect class="p{place}" x="{left:.2f}" width="{width:.2f}" height="10"/>')
            left += width
        total = sum(one.values()) or 1.0
        cells = "".join(
            f"<td>{one.get(name, 0.0):.2f} s, {100 * one.get(name, 0.0) / total:.0f} %</td>"
            for name in names
        )
        rows.append(
            f'<tr><th scope="row">{escape(label)}</th><td class="bar"><svg viewBox="0 0 100 10" '
            f'preserveAspectRatio="none" aria-hidden="true">{"".join(bar)}</svg></td>'
            f"<td>{total:.1f} s</td>{cells}</tr>"
        )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Time per phase"><table>'
        '<caption>Seconds in each phase, mean over seeds</caption><thead><tr><th scope="col">scheme'
        f'</th><th scope="col" class="bar">share</th><th scope="col">total</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
