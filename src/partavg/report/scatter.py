"""Results against costs as pictures: a point each, the front as a line of steps, named."""

from collections.abc import Iterator, Sequence
from html import escape

from partavg.report.axes import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axes
from partavg.report.chart import keys
from partavg.report.palette import LIGHT
from partavg.report.pareto import Costs, Spot

Place = tuple[float, float]
Box = tuple[float, float, float, float]
"""From left to right, from top to bottom."""

_LETTER, _LINE = 9.9, 18  # about so wide and high is text on a phone, where it is larger
_AWAY, _BESIDE = 7, 7  # pixels from a spot to its name, and between schemes of one price
_FURTHEST = 28  # from the first of them to the last
_MOST_NAMED = 24  # letters


def figures(found: Sequence[Costs]) -> list[str]:
    """A figure for each cost."""
    return [_figure(one) for one in found]


def _figure(costs: Costs) -> str:
    return (
        f'<figure id="chart-{costs.key}" class="costs"><figcaption><h3>{escape(costs.title)}</h3>'
        f'<span class="soft">{escape(costs.note)}</span>{keys(enumerate(costs.schemes), dots=True)}'
        "</figcaption>"
        f'<div class="plot">{draw(costs)}</div><p class="soft">{escape(costs.said)}</p></figure>'
    )


def draw(costs: Costs) -> str:
    """An SVG picture."""
    axes = _axes(costs)
    places = _places(axes, costs)
    steps = _steps([places[spot] for spot in costs.front])
    parts = [*axes.opened(costs.title), f'<path class="front" d="{steps}"/>']
    for spot in costs.spots:
        x, y = places[spot]
        color = f"line c{spot.group % len(LIGHT.lines)}"
        if spot.ends:
            low, high = (float(axes.down(end)) for end in spot.ends)
            parts.append(f'<path class="{color}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
        said = escape(f"{spot.name}: {spot.x:.4g} {costs.x_label}, {spot.y:.4g}")
        kind = "faint dot" if spot.faint else "dot"
        parts.append(
            f'<path class="{color} {kind}" d="M{x:.1f},{y:.1f}h.01"><title>{said}</title></path>'
        )
    return "\n".join([*parts, *_names(axes, costs, places), "</svg>"])


def _axes(costs: Costs) -> Axes:
    reached = [end for spot in costs.spots for end in (spot.y, *(spot.ends or ()))]
    paid = [spot.x for spot in costs.spots]
    return Axes(
        (min(paid), max(paid)), (min(reached), max(reached)), costs.x_label, log_x=costs.log_x
    )


def aside(costs: Costs) -> dict[int, float]:
    """How far each scheme stands aside, as a share of the width, where it would hide another."""
    axes = _axes(costs)
    marks = {
        spot.group: _mark(axes, spot, _true(axes, spot)) for spot in costs.spots if not spot.faint
    }
    return {group: _aside(group, marks) / WIDTH for group in marks}


def _places(axes: Axes, costs: Costs) -> dict[Spot, Place]:
    """Where spots lie; schemes that would hide each other stand side by side."""
    shifts, found = aside(costs), {}
    for spot in costs.spots:
        x, y = _true(axes, spot)
        found[spot] = x + WIDTH * shifts.get(spot.group, 0), y
    return found


def _true(axes: Axes, spot: Spot) -> Place:
    return float(axes.across(spot.x)), float(axes.down(spot.y))


def _aside(group: int, marks: dict[int, Box]) -> float:
    """How far a scheme moves away from those that it would hide."""
    near = [other for other, mark in marks.items() if _overlap(mark, marks[group])]
    near.sort(key=lambda other: (round(marks[other][0]), other))
    step = min(_BESIDE, _FURTHEST / len(near))
    return step * (near.index(group) - (len(near) - 1) / 2)


def _steps(front: Sequence[Place]) -> str:
    """From each place on to where the next one is better; the last one's holds to the edge."""
    (x, y), *others = front
    steps = "".join(f"H{across:.1f}V{down:.1f}" for across, down in others)
    return f"M{x:.1f} {y:.1f}{steps}H{WIDTH - RIGHT}"


def _names(axes: Axes, costs: Costs, places: dict[Spot, Place]) -> list[str]:
    """The names of spots, those on the front first, each where nothing else stands."""
    others = [spot for spot in costs.spots if not spot.faint and spot not in costs.front]
    taken = [_mark(axes, spot, places[spot]) for spot in [*costs.front, *others]]
    shown = []
    for spot in [*costs.front, *others]:
        name = spot.name if len(spot.name) <= _MOST_NAMED else f"{spot.name[:_MOST_NAMED]}…"
        wide = _LETTER * len(name)
        for x, y, anchor in _beside(*places[spot], far=spot in costs.front):
            left = x - wide if anchor == "end" else x
            box = (left, left + wide, y - 0.8 * _LINE, y + 0.2 * _LINE)
            if _inside(box) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                shown.append(
                    f'<text class="named" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
                    f"{escape(name)}</text>"
                )
                break
    return shown


def _mark(axes: Axes, spot: Spot, place: Place) -> Box:
    """What a spot and its interval cover."""
    x, y = place
    high, low = (float(axes.down(end)) for end in reversed(spot.ends or (spot.y, spot.y)))
    return x - 3.5, x + 3.5, min(high, y - 4), max(low, y + 4)


def _beside(x: float, y: float, *, far: bool) -> Iterator[tuple[float, float, str]]:
    """Where a name may begin or end, the best place first; `far`: further away, too."""
    heights = (-_AWAY, _AWAY + 0.5 * _LINE, -_AWAY - _LINE, _AWAY + 1.5 * _LINE)
    sides = [(x + _AWAY, "start"), (x - _AWAY, "end")]
    for across, anchor in sides if x < WIDTH / 2 else reversed(sides):
        for down in heights if far else heights[:2]:
            yield across, y + down, anchor


def _inside(box: Box) -> bool:
    left, right, top, bottom = box
    return left >= LEFT and right <= WIDTH and top >= 0 and bottom <= HEIGHT - BOTTOM


def _overlap(one: Box, other: Box) -> bool:
    across = one[0] < other[1] and other[0] < one[1]
    return across and one[2] < other[3] and other[2] < one[3]
