"""The report: one HTML page that works offline, the same for one run and for many."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from partavg.comparison import CLIENTS, note
from partavg.folder import DATA, write_text
from partavg.report import clients, heat, palette, pareto, phases, scatter, sections
from partavg.report.chart import draw, swatch
from partavg.report.charts import Chart, charts
from partavg.report.data import as_json
from partavg.report.heat import HeatMaps
from partavg.report.runs import Group, ShownRun, grouped
from partavg.report.sides import side_by_side
from partavg.report.table import TextTable, columns, comparison
from partavg.report.words import seen

_MANY = 12  # groups before whose legend stands what shows or hides them all


def write_page(
    path: Path,
    runs: Sequence[ShownRun],
    tables: Sequence[TextTable] = (),
    *,
    said: Sequence[str] = (),
    figures: Sequence[str] = (),
) -> Path:
    """Write the page of some runs; `tables` and `figures` come after the comparison.

    What is `said` stands in place of what the runs alone tell.
    """
    write_text(path, page(runs, tables, said=said, figures=figures))
    return path


def page(
    runs: Sequence[ShownRun],
    tables: Sequence[TextTable] = (),
    *,
    refresh: float = 0,
    said: Sequence[str] = (),
    figures: Sequence[str] = (),
) -> str:
    """The page as text; with `refresh` it looks for news every so many seconds."""
    groups = grouped(runs)
    drawn, maps = charts(groups), heat.heat_maps(groups)
    style = palette.style() + _resource("page.css") + heat.style()
    script = _script()
    return Template(_resource("page.html")).substitute(
        title=escape(sections.title(groups)),
        policy=_policy(style, script, refresh > 0),
        style=style,
        script=script,
        refresh=f"{refresh:g}",
        data=as_json(groups, drawn, maps.drawn),
        main="\n".join(_main(groups, drawn, maps, tables, said, figures)),
    )


def _main(
    groups: Sequence[Group],
    drawn: Sequence[Chart],
    maps: HeatMaps,
    tables: Sequence[TextTable],
    said: Sequence[str],
    figures: Sequence[str],
) -> list[str]:
    if not groups:
        return ["<h1>No runs yet</h1>", "<p>This page fills by itself as soon as a run starts.</p>"]
    each_client = [html for group in groups for html in clients.section(group)]
    timed = phases.phases(groups)
    parts = [
        f"<h1>{escape(sections.title(groups))}</h1>",
        *(f'<p class="lead">{escape(each)}</p>' for each in said or [seen(groups)] if each),
        sections.story(groups),
        "<h2>Results</h2>",
        comparison(groups).html(),
        f'<p class="soft">{escape(_note(groups))}</p>',
        *(table.html() for table in tables if table.rows),
        *each_client,
        f'<div class="charts">{"".join(figures)}</div>' if figures else "",
    ]
    if paid := scatter.figures(pareto.of_results(groups)):
        parts += ["<h2>Results against costs</h2>", f'<div class="charts">{"".join(paid)}</div>']
    if drawn:
        figures = "\n".join(_figure(chart, groups) for chart in drawn)
        parts += ["<h2>Curves</h2>", _legend(groups), f'<div class="charts">{figures}</div>']
    parts += heat.section(groups, maps)
    if timed:
        parts += ["<h2>Time per phase</h2>", phases.draw(timed)]
    parts += sections.splits(groups)
    parts.append("<h2>Settings</h2>")
    parts += _sides("Settings", side_by_side("Settings", groups, lambda run: run.settings))
    parts.append("<h2>Environment</h2>")
    parts += _sides("Environment", side_by_side("Environment", groups, _environment))
    return [part for part in parts if part]


def _note(groups: Sequence[Group]) -> str:
    """What the results are of."""
    of_clients = any(column.key.startswith("clients_") for column in columns(groups))
    said = note([group.result for group in groups])
    return f"{said} {CLIENTS}" if of_clients else said


def _legend(groups: Sequence[Group]) -> str:
    """Buttons that hide a group or, where there are several seeds, one of its runs."""
    several = any(len(group.runs) > 1 for group in groups)
    items, number = [], 0
    for place, group in enumerate(groups):
        seeds = []
        for run in group.runs:
            if len(group.runs) > 1:
                label = run.name.removeprefix(f"{group.name}, ")
                seeds.append(
                    f'<button type="button" id="run-{number}" class="one" data-run="{number}" '
                    f'data-of="{place}" aria-pressed="true" aria-label="{escape(run.name)}">'
                    f"{escape(label)}</button>"
                )
            number += 1
        items.append(
            f'<li><button type="button" id="group-{place}" data-group="{place}" '
            f'aria-pressed="true"><svg viewBox="0 0 28 8" aria-hidden="true">'
            f"{swatch(place)}</svg><bdi>{escape(group.name)}</bdi></button>{''.join(seeds)}</li>"
        )
    note = "Thick lines are means over seeds, thin ones single seeds. " if several else ""
    tools = (
        '<p class="tools"><button type="button" id="show-all">show all</button>'
        '<button type="button" id="show-none">hide all</button></p>'
    )
    parts = [f"<ul>{''.join(items)}</ul>", tools]
    return (
        f'<nav class="legend" aria-label="Runs to show">'
        f"{''.join(parts if len(groups) <= _MANY else reversed(parts))}</nav>"
        f'<p class="soft hint">{note}Click a name to hide it. In a chart: drag to zoom, '
        "double-click to reset; with keys: ← → read values, + − 0 zoom.</p>"
    )


def _figure(chart: Chart, groups: Sequence[Group]) -> str:
    caption = (
        f"<figcaption><h3>{escape(chart.title)}</h3>"
        f'<span class="soft">{escape(chart.note)}</span></figcaption>'
    )
    if chart.once:
        table = sections.once(chart, groups).html()
        return f'<figure id="chart-{chart.key}">{caption}<div class="plot">{table}</div></figure>'
    log = (
        f'<button type="button" id="log-{chart.key}" class="log" aria-pressed="false">log</button>'
        if chart.log
        else ""
    )
    return (
        f'<figure id="chart-{chart.key}" data-chart="{chart.key}">{caption}'
        f'<div class="tools">{log}<button type="button" id="reset-{chart.key}" class="reset" '
        f'hidden>reset zoom</button></div><div class="plot">{draw(chart)}</div></figure>'
    )


def _environment(run: ShownRun) -> dict[str, Any]:
    private = "privacy.clip" in run.settings  # then nothing is said of clients' samples
    hidden = {"seed", DATA} if private else {"seed"}
    return {key: value for key, value in run.environment.items() if key not in hidden}


def _sides(caption: str, tables: tuple[TextTable, TextTable]) -> list[str]:
    apart, common = tables
    shown = apart.html("sides") if apart.rows else ""
    if not common.rows:
        return [shown]
    return [
        shown,
        f'<details id="{caption.lower()}-shared"><summary>{common.caption} ({len(common.rows)})'
        f"</summary>{common.html('sides')}</details>",
    ]


def _policy(style: str, script: str, live: bool) -> str:
    """What the browser may do: run and apply what is in the page, fetch nothing."""

    def digest(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    connect = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; {connect}img-src data:; style-src {digest(style)}; "
        f"script-src {digest(script)}; base-uri 'none'; form-action 'none'"
    )


def _script() -> str:
    """All scripts as one that leaves no names behind."""
    names = ("scales.js", "plot.js", "map.js", "page.js")
    return "\n".join(['"use strict";', "(() => {", *map(_resource, names), "})();"])


def _resource(name: str) -> str:
    return resources.files("partavg.report").joinpath(name).read_text("utf-8")
