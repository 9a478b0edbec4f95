"""`partavg reproduce`."""

from functools import partial
from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg reproduce table1 --rows cifar10 --seeds 3
  partavg reproduce table3 --rows femnist,imdb-alpha1 --scale 0.05
  partavg reproduce lm --rows interval32 --seeds 3
  partavg reproduce table1/cifar10-interval8 --out runs/cell --resume
"""


@click.command(epilog=EXAMPLES)
@click.argument("target", metavar="TABLE", shell_complete=options.tables_and_recipes)
@click.option("--rows", metavar="WORDS", help="Only rows with one of these words in their name.")
@options.seeds
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="A trial: this share of the budget and of the data. Every output then says so.",
)
@options.settings
@options.data
@options.out
@options.resume
@options.force
@click.pass_context
def reproduce(
    context: click.Context,
    target: str,
    rows: str | None,
    seeds: int,
    scale: float,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Run the recipes of a TABLE of the paper (table1 to table6, or all), of lm, or one recipe.

    They run one after another, each scheme with each seed; then what the paper reports is printed
    beside what was measured, with the sign of partial − periodic. The recipes of lm compare methods
    that train language models; no paper reports them.
    """
    from dataclasses import replace

    from partavg import reproduce as reproducing
    from partavg.build import check
    from partavg.cli import drive, output, reproduce_report
    from partavg.cli.datasets import Datasets
    from partavg.cli.job import job
    from partavg.data.root import root
    from partavg.outputs import check_page
    from partavg.report.page import write_page
    from partavg.sinks.progress import display
    from partavg.stopping import stop_request
    from partavg.sweeps.place import check_no_sweep

    console = output.console()
    # What is left of a run is its summary: the states of 128 large models would fill a disk.
    settings = ["checkpoints.final=false", *overrides]
    settings += [f"training.scale={scale}"] if scale != 1 else []
    store = Datasets(root(data))
    with job() as this:
        with output.bad_input(this.processes.together()), output.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            names = reproducing.select(target, rows)
            out = this.out(out, f"reproduce-{target.replace('/', '-')}")
            planned = reproducing.planned(names, settings, seeds, out)
            reproducing.read_csv(out / reproduce_report.RESULTS)  # if it is not ours, say so now
            for folder in (out, *(out / name for name in names)):
                check_page(folder / "report.html", force=force)
                check_no_sweep(folder)
            for number, row in enumerate(planned):
                samples = store(row.entries[0].config.data)
                for entry in row.entries:
                    check(entry.config, samples)
                entries = this.continued(row.entries, samples, resume=resume, force=force)
                planned[number] = replace(row, entries=tuple(entries))
        scale = planned[0].entries[0].config.training.scale
        start = partial(this.start, resume=resume, force=force)
        diverged: list[str] = []
        with (
            drive.early_ends(this.resuming(context, out)),
            output.plain_warnings(),
            stop_request() as request,
            display(console) as shown,
        ):
            for row in planned:
                shown.say(f"{row.recipe.name}{reproduce_report.scaled(scale)}")
                samples = store(row.entries[0].config.data)
                diverged += drive.train_all(row.entries, samples, start, shown, request)
                if output.speaks():
                    reproduce_report.write_row(out, row, planned)
        if output.speaks():
            console.print(reproduce_report.table(planned, scale))
            with output.bad_input():
                shown_runs, tables = reproduce_report.page(planned, scale, out)
                report = write_page(out / "report.html", shown_runs, tables)
            results = out / reproduce_report.RESULTS
            console.print(f"results: {results}", highlight=False, soft_wrap=True)
            console.print(f"run folders and a report of each row: {out}\nreport: {report}",
                          highlight=False, soft_wrap=True)  # fmt: skip
        if diverged:
            output.fail("; ".join(diverged), output.DIVERGED)
