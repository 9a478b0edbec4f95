"""`partavg run`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partavg.cli import options

if TYPE_CHECKING:
    from partavg.metrics.metric import Metric

EXAMPLES = """\b
Examples:
  partavg run recipe.toml
  partavg run recipe.toml --set averaging.interval=8 --set training.seed=1
  partavg run table1/cifar10-interval8 --scheme periodic --data ~/datasets
  partavg run runs/recipe-1/config.toml --out runs/recipe-1 --resume
  torchrun --nproc-per-node 4 -m partavg run recipe.toml
"""


@click.command(epilog=EXAMPLES)
@options.recipe
@options.scheme
@options.settings
@options.data
@options.out
@options.resume
@options.force
@click.pass_context
def run(
    context: click.Context,
    recipe: str,
    scheme: str | None,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Train what RECIPE describes: a file, a folder, or a name that `partavg recipes` lists.

    A recipe of several schemes is trained with partial averaging if no other is named.
    """
    from partavg import comparison as comparing
    from partavg import recipe as recipes
    from partavg.cli import drive, output
    from partavg.cli.job import job
    from partavg.config import create
    from partavg.data.root import root
    from partavg.folder import RunFolder
    from partavg.metrics.table import main_metric
    from partavg.report.page import write_page
    from partavg.report.runs import gather
    from partavg.sinks.progress import display
    from partavg.stopping import stop_request

    with job() as this:
        with output.bad_input(this.processes.together()), output.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            found = recipes.load(recipe, overrides)
            config = comparing.chosen(found, scheme)
            folder = RunFolder(this.out(out, found.name.rpartition("/")[2]))
            samples = create("data", config.data, root(data))
        session = this.start(config, samples, folder, resume=resume, force=force)
        if session is None:
            output.say(f"{folder.path} is finished already; a larger budget would go on")
            return
        with (
            drive.early_ends(this.resuming(context, folder.path)),
            stop_request() as request,
            display(output.console()) as shown,
        ):
            drive.introduce(session, shown)
            drive.train(session, found.name, shown, request)
        if output.speaks():
            summary = folder.summary()
            main = main_metric([summary], folder.metrics())
            click.echo(_sentence(summary, main, comparing.caveat([summary])))
            with output.bad_input():
                report = write_page(folder.report_path, gather([folder.path]))
            click.echo(f"run folder: {folder.path}\nreport: {report}")


def _sentence(summary: dict[str, Any], main: "Metric | None", caveat: str) -> str:
    """How a run ended, in one line: by the metric that runs are compared by, and what it took."""
    from partavg.metrics.metric import number

    said: dict[str, Callable[[Any], str]] = {
        "clients_accuracy_worst": lambda value: f"of the worst client {100 * value:.2f} %",
        "train_loss": lambda value: f"training loss {number(value, '.3f')}",
        "peak_discrepancy": "peak discrepancy {:.3g}".format,
        "bytes": lambda value: f"{number(value / 1e6, '.1f')} MB sent per worker",
        "messages": "{} messages".format,
        "seconds": "{:.1f} s".format,
    }
    parts = [caveat] if caveat else []
    if main and main.key != "train_loss":
        unit = f" {main.unit}" if main.unit else ""
        whose = "" if main.key.startswith("clients_") else " of u_K"
        parts.append(f"{main.called}{whose} {main.text(summary[main.key])}{unit}")
    parts += [say(summary[key]) for key, say in said.items() if summary.get(key) is not None]
    spent = summary.get("timings") or {}
    total = sum(spent.values()) or 1
    parts += [f"{phase} {100 * seconds / total:.0f} %" for phase, seconds in spent.items()]
    return ", ".join(parts) or "finished"
