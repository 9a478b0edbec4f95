"""`partavg compare`."""

from functools import partial
from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg compare
  partavg compare --seeds 3
  partavg compare --tune lr --seeds 3
  partavg compare recipe.toml --schemes periodic,4-parts,partial --set averaging.interval=8
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@options.schemes
@click.option(
    "--tune",
    multiple=True,
    metavar="KEY",
    help="Let each scheme have its own best of three values around the recipe's, chosen on "
    "validation samples: lr, or any setting that is a number; may be given several times. "
    "`partavg sweep` does more.",
)
@options.seeds
@options.settings
@options.data
@options.out
@options.resume
@options.force
@click.pass_context
def compare(
    context: click.Context,
    recipe: str,
    schemes: str | None,
    tune: tuple[str, ...],
    seeds: int,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Train the same task from the same start under several averaging schemes.

    RECIPE is a file, a folder with a recipe.toml, or a name that `partavg recipes` lists. Without
    it the demo is run: 64 workers with uneven shares of a subset of Fashion-MNIST that comes with
    the package.
    """
    if tune:
        _tuned(context, recipe, schemes, tune, seeds, overrides, data, out, resume, force)
        return

    from partavg import comparison as comparing
    from partavg import recipe as recipes
    from partavg.build import check
    from partavg.cli import drive, output
    from partavg.cli.comparison_table import comparison_table
    from partavg.cli.job import job
    from partavg.config import create
    from partavg.data.root import root
    from partavg.outputs import check_page
    from partavg.report.page import write_page
    from partavg.report.runs import gather, grouped
    from partavg.report.words import together
    from partavg.sinks.progress import display
    from partavg.stopping import stop_request
    from partavg.sweeps.place import check_no_sweep
    from partavg.verdict import verdict

    console = output.console()
    with job() as this:
        with output.bad_input(this.processes.together()), output.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            chosen = recipes.load(recipe, overrides)
            out = this.out(out, "compare")
            named = [name.strip() for name in (schemes or "").split(",") if name.strip()]
            names = named if schemes else list(comparing.schemes_of(chosen))
            entries = comparing.planned_runs(chosen, names, seeds, out)
            check_page(out / "report.html", force=force)
            check_no_sweep(out)
            samples = create("data", entries[0].config.data, root(data))
            for entry in entries:
                check(entry.config, samples)
            entries = this.continued(entries, samples, resume=resume, force=force)
        start = partial(this.start, resume=resume, force=force)
        with drive.early_ends(this.resuming(context, out)):
            with (
                output.plain_warnings(),
                stop_request() as request,
                display(console) as shown,
            ):
                diverged = drive.train_all(entries, samples, start, shown, request)
            if output.speaks():
                with output.bad_input():
                    runs = gather([out])  # those of before, too
                    groups = together(grouped(runs), [entry.folder.path for entry in entries])
                    report = write_page(out / "report.html", runs)
                console.print(comparison_table([group.result for group in groups]))
                others = len(grouped(runs)) - len(groups)
                said = [] if diverged else [verdict([group.result for group in groups])]
                said += [_others(others)] if others else []
                said += [f"run folders: {out}", f"report: {report}"]
                console.print("\n".join(said), highlight=False, soft_wrap=True)
        if diverged:
            output.fail("; ".join(diverged), output.DIVERGED)


def _tuned(
    context: click.Context,
    recipe: str,
    schemes: str | None,
    tune: tuple[str, ...],
    seeds: int,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Compare schemes, each with its own best of three values: a small sweep."""
    from partavg.cli.sweeping import sweep_command
    from partavg.sweeps.of_recipe import AROUND_A_LITTLE

    keys = dict.fromkeys("training.lr" if key == "lr" else key for key in tune)
    sweep_command(
        context, recipe, (), schemes, seeds, overrides, data, out, resume=resume, force=force,
        tune=keys, factors=AROUND_A_LITTLE,
    )  # fmt: skip


def _others(count: int) -> str:
    """That the folder holds what cannot stand in one table with these."""
    noun = "scheme is" if count == 1 else "schemes are"
    return (
        f"{count} more {noun} of another task, of other data or budget: the report shows them "
        f"beside these"
    )
