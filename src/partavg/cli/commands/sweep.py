"""`partavg sweep`."""

from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg sweep
  partavg sweep recipe.toml --grid training.lr=0.05,0.1,0.2,0.4 --schemes periodic,partial
  partavg sweep --grid training.lr=0.01,0.02,0.04 --grid solver.momentum=0.0,0.9 --budget 8
  partavg sweep --grid 'training.lr=loguniform(0.003, 0.1)' --budget 36 --search halving
  partavg sweep --grid 'training.lr=loguniform(0.003, 0.1)' --budget 24 --search optuna
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=VALUES",
    shell_complete=options.settings_to_tune,
    help="A setting to tune, and its values: 0.1,0.2 or loguniform(0.01, 1) or uniform(0, 1); "
    "may be given several times.  [default: training.lr, five rates around the recipe's]",
)
@options.schemes
@click.option("--seeds", default=3, show_default=True, help="Fresh seeds of each test.")
@click.option(
    "--tune-seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Seeds by whose mean settings are chosen: less chance, so many times the runs.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    help="Tuning runs of all schemes together; of a larger grid so many are drawn.",
)
@click.option(
    "--validation",
    type=float,
    help="The share of the training samples that is held out to choose on.  "
    "[default: training.validation, or 0.1]",
)
@click.option(
    "--search",
    type=click.Choice(["listed", "halving", "optuna"]),
    default="listed",
    show_default=True,
    help="All to the end; the best third of all goes on, twice and more; or what Optuna suggests.",
)
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "gp", "qmc", "random"]),
    default="tpe",
    show_default=True,
    help="Optuna's.",
)
@click.option("--storage", metavar="URL", help="Optuna's database; a file in --out if not given.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Runs beside each other.  [default: 1 on a GPU, on a CPU one for every core, at most 8]",
)
@options.settings
@options.data
@options.out
@options.resume
@options.force
@click.pass_context
def sweep(
    context: click.Context,
    recipe: str,
    grids: tuple[str, ...],
    schemes: str | None,
    seeds: int,
    tune_seeds: int,
    budget: int | None,
    validation: float | None,
    search: str,
    sampler: str,
    storage: str | None,
    jobs: int | None,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Compare schemes, each with its own best settings.

    Settings are chosen on validation samples, held out of the training data; what is chosen is then
    trained on all of it with fresh seeds and judged on the test set. A sweep that was stopped or
    killed goes on with --resume. Several processes can share one: --jobs, torchrun with --out, or
    the same command with --resume on another terminal or machine that sees --out.
    """
    from partavg.cli.sweeping import sweep_command

    sweep_command(
        context,
        recipe,
        grids,
        schemes,
        seeds,
        overrides,
        data,
        out,
        resume=resume,
        force=force,
        validation=validation,
        tune_seeds=tune_seeds,
        budget=budget,
        search=search,
        sampler=sampler,
        storage=storage,
        jobs=jobs,
    )
