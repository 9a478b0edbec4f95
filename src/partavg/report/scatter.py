"""Results against costs as pictures: a point each, the front as a line of steps, named."""

from collections.abc import Sequence
from html import escape

from partavg.report.axes import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, Axes
from partavg.report.chart import keys
from partavg.report.palette import LIGHT
from partavg.report.pareto import Costs, Spot

Place = tuple[float, float]

_LETTER, _LINE = 6.6, 14  # about so wide and high is text
_AWAY, _BESIDE = 7, 7  # pixels from a spot to its name, and between schemes of one price
_MOST_NAMED = 24  # letters


def figures(found: Sequence[Costs]) -> list[str]:
    """A figure for each cost."""
    return [_figure(one) for one in found]


def _figure(costs: Costs) -> str:
    return (
        f'<figure id="chart-{costs.key}" class="costs"><figcaption><h3>{escape(costs.title)}</h3>'
        f'<span class="soft">{escape(costs.note)}</span>{keys(enumerate(costs.schemes))}'
        "</figcaption>"
        f'<div class="plot">{draw(costs)}</div><p class="soft">{escape(costs.said)}</p></figure>'
    )


def draw(costs: Costs) -> str:
    """An SVG picture."""
    reached = [end for spot in costs.spots for end in (spot.y, *(spot.ends or ()))]
    paid = [spot.x for spot in costs.spots]
    axes = Axes(
        (min(paid), max(paid)), (min(reached), max(reached)), costs.x_label, log_x=costs.log_x
    )
    places = _places(axes, costs)
    front = [places[spot] for spot in costs.front]
    parts = [*axes.opened(costs.title), f'<path class="front" d="{_steps(front)}"/>']
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
    return "\n".join([*parts, *_names(costs.front, front), "</svg>"])


def _places(axes: Axes, costs: Costs) -> dict[Spot, Place]:
    """Where spots lie; schemes of one price stand beside each other."""
    x = {spot: float(axes.across(spot.x)) for spot in costs.spots}
    plain = [(spot.group, x[spot]) for spot in costs.spots if not spot.faint]
    near = any(
        group != other and abs(here - there) < _BESIDE
        for group, here in plain
        for other, there in plain
    )
    middle = (len(costs.schemes) - 1) / 2
    aside = _BESIDE if near else 0
    return {
        spot: (place + aside * (spot.group - middle), float(axes.down(spot.y)))
        for spot, place in x.items()
    }


def _steps(front: Sequence[Place]) -> str:
    """From each place on to where the next one is better; the last one's holds to the edge."""
    (x, y), *others = front
    steps = "".join(f"H{across:.1f}V{down:.1f}" for across, down in others)
    return f"M{x:.1f} {y:.1f}{steps}H{WIDTH - RIGHT}"


def _names(spots: Sequence[Spot], front: Sequence[Place]) -> list[str]:
    """The names of spots, each where no other stands."""
    taken: list[tuple[float, float, float]] = []
    shown = []
    for spot, (x, y) in zip(spots, front, strict=True):
        name = spot.name if len(spot.name) <= _MOST_NAMED else f"{spot.name[:_MOST_NAMED]}…"
        width = _LETTER * len(name)
        right = x < WIDTH / 2  # of the spot; anchored there, it stays inside in larger letters
        left = x + _AWAY if right else x - _AWAY - width
        for down in (y - _AWAY, y + _AWAY + _LINE / 2, y - _AWAY - _LINE, y + _AWAY + 1.5 * _LINE):
            free = not any(
                abs(down - other) < _LINE and left < end and begin < left + width
                for other, begin, end in taken
            )
            if TOP < down < HEIGHT - BOTTOM and free:
                taken.append((down, left, left + width))
                anchor, across = ("start", x + _AWAY) if right else ("end", x - _AWAY)
                shown.append(
                    f'<text class="named" x="{across:.1f}" y="{down:.1f}" '
                    f'text-anchor="{anchor}">{escape(name)}</text>'
                )
                break
    return shown
