"""`partavg compare`."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

import click
from rich import box
from rich.table import Table

from partavg import compare as comparing
from partavg import config as configs
from partavg.cli import drive
from partavg.cli.display import Display, display
from partavg.data.dataset import Dataset
from partavg.report.page import write_report
from partavg.run import Run, check

DEMO = "demo.toml"


EXAMPLES = """\b
Examples:
  partavg compare
  partavg compare --seeds 3
  partavg compare recipe.toml --schemes periodic,4-parts,partial --set averaging.interval=8
"""


@click.command(epilog=EXAMPLES)
@click.argument("recipe", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--schemes",
    default=",".join(comparing.SCHEMES),
    show_default=True,
    help="Which schemes, separated by commas; 4-parts averages in 4 parts.",
)
@click.option("--seeds", default=1, show_default=True, help="How many seeds to run each with.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a setting.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The folder.")
@click.option("--resume", is_flag=True, help="Continue the comparison in --out.")
@click.option("--force", is_flag=True, help="Overwrite the comparison in --out.")
def compare(
    recipe: Path | None,
    schemes: str,
    seeds: int,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Train the same task from the same start under several averaging schemes.

    Without RECIPE it takes the one that comes with the package: 64 workers with uneven shares of
    a subset of Fashion-MNIST.
    """
    console = drive.console()
    with drive.bad_input(), drive.plain_warnings():
        if resume and (out is None or force):
            raise ValueError("--resume needs --out, the folder of the comparison, and no --force")
        config = _load(recipe, overrides)
        out = out or drive.next_folder("compare")
        names = [name.strip() for name in schemes.split(",") if name.strip()]
        entries = comparing.plan(config, names, seeds, out)
        data: Dataset = configs.build("data", config.data)
        for entry in entries:
            entry.folder.check_free(resume=resume, force=force)
            check(entry.config, data)
        if resume:
            entries = comparing.resumed(entries)
    again = ["partavg", "compare", *([str(recipe)] if recipe else []), "--schemes", schemes]
    again += ["--seeds", str(seeds), *(f"--set={override}" for override in overrides)]
    again += ["--out", str(out), "--resume"]
    with drive.early_ends(again):
        with drive.plain_warnings(), drive.stop_request() as request, display(console) as shown:
            _work(entries, data, shown, request, resume=resume, force=force)
        found = comparing.results(entries)
        console.print(_table(found))
        report = write_report(out / "report.html", entries)
    console.print(comparing.verdict(found), highlight=False, soft_wrap=True)
    console.print(f"run folders: {out}\nreport: {report}", highlight=False, soft_wrap=True)


def _load(recipe: Path | None, overrides: tuple[str, ...]) -> configs.Config:
    if recipe:
        return configs.load(recipe, overrides)
    with resources.as_file(resources.files("partavg.recipes") / DEMO) as path:
        return configs.load(path, overrides)


def _work(
    entries: list[comparing.Entry],
    data: Dataset,
    shown: Display,
    request: drive.StopRequest,
    *,
    resume: bool,
    force: bool,
) -> None:
    """Train all runs with the engine of the first."""
    engine = None
    several = len({entry.seed for entry in entries}) > 1
    for entry in entries:
        if resume and entry.folder.finished:
            continue
        config = replace(entry.config, engine=engine) if engine else entry.config
        with drive.bad_input():
            run = Run(config, data, entry.folder, resume=resume, force=force)
        if engine is None:
            engine = run.config.engine
            shown.say(f"engine: {engine.name} ({run.engine_reason})")
        label = f"{entry.scheme} seed {entry.seed}" if several else entry.scheme
        drive.train(run, label, shown, request)


def _table(found: list[comparing.Result]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption=comparing.NOTE, caption_justify="left")
    table.add_column("scheme", no_wrap=True)
    for heading in comparing.COLUMNS:
        table.add_column(heading.replace(" ", "\n"), justify="right")
    for result in found:
        table.add_row(result.scheme, *(result.text(*how) for how in comparing.COLUMNS.values()))
    return table
