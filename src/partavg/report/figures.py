"""Figures for papers, by matplotlib: vector graphics with text that stays text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partavg.outputs import check_new
from partavg.report import heat, palette, pareto, phases
from partavg.report.axes import decades
from partavg.report.charts import Chart, charts
from partavg.report.palette import DASHES, LIGHT, SHARES, STROKE, class_color
from partavg.report.runs import Group, Numbers
from partavg.report.scatter import aside
from partavg.report.sections import SPLITS, distinct_splits, few

_COLORS = LIGHT.lines
_DASHES = [(0, tuple(length / STROKE for length in dash)) if dash else "-" for dash in DASHES]
_COLUMN, _HEIGHT = 3.4, 2.3  # inches: a column of a two-column paper
_LOOK: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.linewidth": 0.4, "grid.color": LIGHT.rule,
    "legend.frameon": False, "legend.fontsize": 7, "lines.linewidth": 1.1, "pdf.fonttype": 42,
    "svg.fonttype": "none", "svg.hashsalt": "partavg", "figure.constrained_layout.use": True,
}  # fmt: skip
_WINDOWS = ("discrepancy_early", "discrepancy_middle")
_FEW_NAMED, _MOST_NAMED = 3, 8
_LETTERS = 60  # of a legend, beside each other


def write_figures(
    folder: Path, groups: Sequence[Group], kind: str, *, force: bool = False
) -> list[Path]:
    """Write each chart to a file of its own; the two windows of the discrepancy to one."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ValueError(
            "figures need matplotlib, which is not installed: pip install 'partavg[figures]'"
        ) from None
    drawn = {chart.key: chart for chart in charts(groups)}
    names = [group.name for group in groups]
    with mpl.rc_context(_LOOK):
        figures = {
            key: _lines([chart], names) for key, chart in drawn.items() if key not in _WINDOWS
        }
        windows = [drawn[key] for key in _WINDOWS if key in drawn]
        if windows:
            figures["discrepancy_windows"] = _lines(windows, names)
        for paid in pareto.of_results(groups):
            figures[paid.key.replace("-", "_")] = _costs(paid)
        if maps := heat.heat_maps(groups).drawn:
            figures["discrepancy_parts"] = _heat(maps, names)
        if timed := phases.phases(groups):
            figures["phases"] = _phases(timed)
        if splits := distinct_splits(groups)[:SPLITS]:
            figures["split"] = _splits(splits)
        if not figures:
            raise ValueError("these runs have no metrics to draw: name runs with a metrics.jsonl")
        files = {folder / f"{key}.{kind}": figure for key, figure in figures.items()}
        for path in files:
            check_new(path, force=force)
        folder.mkdir(parents=True, exist_ok=True)
        return [_save(figure, path) for path, figure in files.items()]


def _save(figure: Any, path: Path) -> Path:
    stamp = {"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
    figure.savefig(path, metadata=stamp)  # without a date the same runs give the same bytes
    return path


def _axes(across: int = 1, down: int = 1, height: float = _HEIGHT) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_COLUMN * across, height * down))
    return figure, figure.subplots(down, across, squeeze=False).flatten()


def _lines(shown: Sequence[Chart], names: Sequence[str]) -> Any:
    """Charts next to each other: thick means, thin seeds."""
    figure, panels = _axes(len(shown))
    if shown[0].once:
        return _once(figure, panels[0], shown[0], names)
    for axes, chart in zip(panels, shown, strict=True):
        for line in sorted(chart.lines, key=lambda line: not line.seed):
            dashes = int(line.other) if chart.second else line.group % len(_DASHES)
            axes.plot(
                line.curve.x,
                line.curve.y,
                color=_COLORS[line.group % len(_COLORS)],
                linestyle="-" if line.seed else _DASHES[dashes],
                linewidth=0.5 if line.seed else None,
                alpha=0.4 if line.seed else 1,
                marker="." if len(line.curve.x) == 1 else None,
                label=None if line.seed or line.other else _plain(names[line.group]),
            )
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        if _flattened(chart):
            axes.set_yscale("log")
        if chart.log_x:
            _logarithmic(axes, np.concatenate([line.curve.x for line in chart.lines]))
        if len(shown) > 1:
            axes.set_title(chart.title)
        if chart.second:
            axes.plot([], [], color="gray", linestyle=_DASHES[1], label=chart.second)
    named = len({line.group for line in shown[0].lines})
    if named <= _FEW_NAMED:
        panels[0].legend()
    elif named <= _MOST_NAMED:  # no room for them inside
        _legend_above(figure, panels[0], len(shown))
    return figure


def _legend_above(figure: Any, axes: Any, panels: int = 1) -> None:
    """A legend with as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(3, _LETTERS // (max(map(len, labels)) + 6))
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, columns) * panels)


def _once(figure: Any, axes: Any, chart: Chart, names: Sequence[str]) -> Any:
    """What was measured but once, as bars: a curve would be a dot."""
    shown = [line for line in chart.lines if not line.seed]
    for place, line in enumerate(shown):
        color = _COLORS[line.group % len(_COLORS)]
        axes.bar(place, line.curve.y[0], color=color, alpha=0.5 if line.other else 1)
    labels = [
        _plain(names[line.group]) + (f", {chart.second}" if line.other else "") for line in shown
    ]
    axes.set_xticks(range(len(shown)), labels)
    axes.set_ylabel(chart.y_label)
    return figure


def _costs(paid: pareto.Costs) -> Any:
    """Schemes as points with intervals, seeds faint; the front as a dotted line of steps."""
    from matplotlib.transforms import ScaledTranslation

    figure, (axes,) = _axes()
    axes.set_xlabel(paid.x_label)
    axes.set_ylabel(paid.y_label)
    if paid.log_x:
        _logarithmic(axes, [spot.x for spot in paid.spots])
    most = max(spot.x for spot in paid.spots)
    x = [*(spot.x for spot in paid.front), most]
    y = [*(spot.y for spot in paid.front), paid.front[-1].y]
    axes.plot(x, y, drawstyle="steps-post", color=LIGHT.soft, linestyle=":", linewidth=0.8)
    shifts = aside(paid)
    for spot in paid.spots:
        shift = ScaledTranslation(_COLUMN * shifts.get(spot.group, 0), 0, figure.dpi_scale_trans)
        low, high = spot.ends or (spot.y, spot.y)
        axes.errorbar(
            spot.x,
            spot.y,
            yerr=[[spot.y - low], [high - spot.y]] if spot.ends else None,
            fmt=".",
            color=_COLORS[spot.group % len(_COLORS)],
            alpha=0.35 if spot.faint else 1,
            label=None if spot.faint else _plain(spot.name),
            transform=axes.transData + shift,
        )
        axes.update_datalim([(spot.x, end) for end in (low, spot.y, high)])
    axes.autoscale_view(scalex=not paid.log_x)
    if len(paid.schemes) <= _MOST_NAMED:
        _legend_above(figure, axes)
    else:
        for spot in paid.front:
            axes.annotate(_plain(spot.name), (spot.x, spot.y), (3, 3), textcoords="offset points")
    return figure


def _logarithmic(axes: Any, x: Sequence[float] | Numbers) -> None:
    """A logarithmic axis below, with the plain numbers that the page has."""
    marks = decades(min(x), max(x))
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])


def _flattened(chart: Chart) -> bool:
    """Whether a few large values leave little of the height to all others."""
    values = np.concatenate([line.curve.y for line in chart.lines])
    values = values[np.isfinite(values)]
    usual = np.median(values) if values.size else np.inf
    return bool(chart.log and values.max(initial=0) > 10 * usual and values.min(initial=1) > 0)


def _heat(maps: Sequence[heat.HeatMap], names: Sequence[str]) -> Any:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    figure, panels = _axes(down=len(maps), height=1.6)
    for axes, one in zip(panels, maps, strict=True):
        shade = axes.imshow(
            one.values,
            aspect="auto",
            interpolation="nearest",
            vmin=0,
            cmap=ListedColormap(palette.heat(256)),
            extent=(one.steps[0], one.steps[1] + 1, one.parts, 0),
        )
        figure.colorbar(shade, ax=axes)
        axes.grid(visible=False)
        axes.set_title(_plain(names[one.group]))
        axes.set_xlabel("step")
        axes.set_ylabel("part")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    return figure


def _phases(found: dict[str, phases.Phases]) -> Any:
    figure, (axes,) = _axes(height=0.9 + 0.28 * len(found))
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    left = np.zeros(len(found))
    for place, name in enumerate(names):
        width = np.array([one.get(name, 0.0) for one in found.values()])
        color = _COLORS[SHARES[place % len(SHARES)]]
        axes.barh(list(map(_plain, found)), width, left=left, color=color, label=name)
        left += width
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def _splits(splits: Sequence[tuple[list[list[int]], list[str]]]) -> Any:
    figure, panels = _axes(down=len(splits))
    for axes, (listed, owners) in zip(panels, splits, strict=True):
        counts = np.array(listed)
        floor = np.zeros(len(counts))
        for label, column in enumerate(counts.T):
            look = {"color": class_color(label, len(counts.T)), "label": f"class {label}"}
            axes.bar(np.arange(len(counts)), column, bottom=floor, **look)
            floor += column
        axes.set_ylim(0, 1.05 * floor.max())
        axes.set_xlabel("worker")
        axes.set_ylabel("samples of each class")
        if len(splits) > 1:
            axes.set_title(_plain(few(owners, 1)))
    if counts.shape[1] <= 10:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _plain(name: str) -> str:
    """A name in which matplotlib sees no formula, nor a wish to be left out."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")
