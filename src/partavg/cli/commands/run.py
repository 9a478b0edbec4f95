"""`partavg run`."""

from pathlib import Path
from typing import Any

import click

from partavg.cli import options

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
    """Train what RECIPE describes: a file, or a name that `partavg recipes` lists.

    A recipe of several schemes is trained with partial averaging if no other is named.
    """
    from partavg import comparison as comparing
    from partavg import recipe as recipes
    from partavg.cli import drive, output
    from partavg.cli.job import job
    from partavg.config import create
    from partavg.data.root import root
    from partavg.folder import RunFolder
    from partavg.report.page import write_page
    from partavg.report.runs import gather
    from partavg.sinks.progress import display
    from partavg.stopping import stop_request

    with job() as this:
        with output.bad_input(this.processes.together()), output.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            found = recipes.load(recipe, overrides)
            config = comparing.chosen(found, scheme)
            folder = RunFolder(this.out(out, Path(recipe).stem))
            samples = create("data", config.data, root(data))
        session = this.start(config, samples, folder, resume=resume, force=force)
        if session is None:
            output.say(f"{folder.path} is finished already")
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
            click.echo(_sentence(summary, comparing.caveat([summary])))
            with output.bad_input():
                report = write_page(folder.report_path, gather([folder.path]))
            click.echo(f"run folder: {folder.path}\nreport: {report}")


def _sentence(summary: dict[str, Any], caveat: str) -> str:
    """How a run ended, in one line."""
    said = {
        "accuracy": "accuracy of u_K {:.2%}",
        "clients_accuracy": "mean accuracy of clients {:.2%}",
        "clients_accuracy_worst": "of the worst {:.2%}",
        "train_loss": "training loss {:.3f}",
        "peak_discrepancy": "peak discrepancy {:.3g}",
    }
    parts = [
        *(
            form.format(summary[key]).replace("%", " %")
            for key, form in said.items()
            if key in summary
        ),
        f"{summary['bytes'] / 1e6:.1f} MB and {summary['messages']} messages per worker",
        f"{summary['seconds']:.1f} s",
    ]
    if "timings" in summary:
        spent = summary["timings"]
        total = sum(spent.values())
        parts.append(", ".join(f"{k} {100 * v / total:.0f} %" for k, v in spent.items()))
    if caveat:
        parts.insert(0, caveat)
    return ", ".join(parts)
