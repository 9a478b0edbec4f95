"""`partavg run`."""

from pathlib import Path

import click

from partavg import compare as comparing
from partavg import recipe as recipes
from partavg.cli import drive, options
from partavg.cli.job import job
from partavg.config import create
from partavg.data.root import root
from partavg.folder import Row, RunFolder
from partavg.report.page import write_page
from partavg.report.runs import gather
from partavg.sinks.progress import display


def run(
    recipe: str,
    scheme: str | None,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Train what a recipe describes."""
    with job() as this:
        with drive.bad_input(this.team), drive.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            found = recipes.load(recipe, overrides)
            config = comparing.chosen(found, scheme)
            folder = RunFolder(this.out(out, Path(recipe).stem))
            samples = create("data", config.data, root(data))
        session = this.start(config, samples, folder, resume=resume, force=force)
        if session is None:
            drive.say(f"{folder.path} is finished already")
            return
        again = this.command("run", str(folder.config_path), "--out", str(folder.path), "--resume")
        again += ["--data", str(data)] if data else []
        with (
            drive.early_ends(again),
            drive.stop_request() as request,
            display(drive.console()) as shown,
        ):
            drive.introduce(session, shown)
            drive.train(session, found.name, shown, request)
        if drive.speaks():
            click.echo(_sentence(folder.summary()))
            with drive.bad_input():
                report = write_page(folder.report_path, gather([folder.path]))
            click.echo(f"run folder: {folder.path}\nreport: {report}")


def _sentence(summary: Row) -> str:
    """How a run ended, in one line."""
    parts = [
        f"accuracy of u_K {100 * summary['accuracy']:.2f} %",
        f"training loss {summary['train_loss']:.3f}",
        f"{summary['bytes'] / 1e6:.1f} MB and {summary['messages']} messages per worker",
        f"{summary['seconds']:.1f} s",
    ]
    if "peak_discrepancy" in summary:
        parts.insert(2, f"peak discrepancy {summary['peak_discrepancy']:.3g}")
    if "timings" in summary:
        spent = summary["timings"]
        total = sum(spent.values())
        parts.append(", ".join(f"{k} {100 * v / total:.0f} %" for k, v in spent.items()))
    if caveat := comparing.caveat([summary]):
        parts.insert(0, caveat)
    return ", ".join(parts)
