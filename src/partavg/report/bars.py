"""A picture of a split: a stacked bar per worker, a color per class."""

from collections.abc import Sequence
from html import escape

from partavg.report.axes import ticks
from partavg.report.palette import LIGHT, class_color

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 56, 150, 40, 44
_MOST_NAMED = 20  # classes that the legend has room for


def bars(title: str, counts: Sequence[Sequence[int]], *, inside: bool = False) -> str:
    """An SVG picture of label counts [workers][classes]: a file, or `inside` a page with styles."""
    classes = len(counts[0])
    step = min(24.0, max(4.0, 720 / len(counts)))
    width = _LEFT + step * len(counts) + _RIGHT
    marks = ticks(0, max(map(sum, counts)))
    scale = (_HEIGHT - _TOP - _BOTTOM) / marks[-1]
    floor = _HEIGHT - _BOTTOM
    name = escape(title)
    parts = [
        f'<svg viewBox="0 0 {width:.0f} {_HEIGHT}" width="{width:.0f}" role="img" '
        f'aria-label="{name}">'
    ]
    if not inside:
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {_HEIGHT}" '
            f'width="{width:.0f}" role="img" aria-label="{name}" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="{LIGHT.soft}">',
            f'<title>{name}</title><rect width="100%" height="100%" fill="{LIGHT.page}"/>',
            f'<text x="{_LEFT}" y="22" font-size="15" fill="{LIGHT.text}">{name}</text>',
        ]
    for mark in marks:
        y = floor - scale * mark
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{width - _RIGHT:.1f}" stroke="{LIGHT.rule}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    for worker, row in enumerate(counts):
        left, top = _LEFT + step * worker, float(floor)
        said = ", ".join(f"{count} of class {label}" for label, count in enumerate(row) if count)
        parts.append(f"<g><title>worker {worker}: {sum(row)} samples, {said}</title>")
        for label, count in enumerate(row):
            if count:
                top -= scale * count
                parts.append(
                    f'<rect x="{left + 0.1 * step:.1f}" y="{top:.2f}" width="{0.8 * step:.1f}" '
                    f'height="{scale * count:.2f}" fill="{class_color(label, classes)}"/>'
                )
        parts.append("</g>")
    for worker in range(0, len(counts), -(-len(counts) // 16)):
        x = _LEFT + step * (worker + 0.5)
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{worker}</text>')
    middle = (_LEFT + width - _RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">worker</text>')
    parts += _legend(classes, width - _RIGHT + 16)
    return "\n".join([*parts, "</svg>", ""])


def _legend(classes: int, left: float) -> list[str]:
    shown = range(0, classes, -(-classes // _MOST_NAMED))
    return [
        f'<rect x="{left:.0f}" y="{_TOP + 13 * line}" width="10" height="10" '
        f'fill="{class_color(label, classes)}"/>'
        f'<text x="{left + 16:.0f}" y="{_TOP + 13 * line + 9}">class {label}</text>'
        for line, label in enumerate(shown)
    ]
