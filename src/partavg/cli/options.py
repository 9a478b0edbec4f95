"""Options that several commands have, and how a shell completes them."""

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from partavg.cli import completion
from partavg.outputs import check_new
from partavg.recipes import DEMO, names

FETCHABLE = ("cifar10", "cifar100", "fashion_mnist", "imdb", "svhn", "svhn_extra")


def _starting(incomplete: str, known: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def recipes(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The recipes that come with the package, and files."""
    return [CompletionItem(incomplete, type="file"), *_starting(incomplete, names())]


def tables_and_recipes(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The paper's tables and the recipes of their rows."""
    tables = dict.fromkeys(name.partition("/")[0] for name in names() if "/" in name)
    return _starting(incomplete, [*tables, *names()])


def fetchable(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The datasets that can be downloaded."""
    return _starting(incomplete, FETCHABLE)


recipe = click.argument("recipe", metavar="RECIPE", shell_complete=recipes)
recipe_or_demo = click.argument("recipe", required=False, default=DEMO, shell_complete=recipes)
scheme = click.option(
    "--scheme", help="A scheme: one of the recipe's own, or as in `partavg compare`."
)
settings = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=completion.settings,
    help="Change a setting.",
)
data = click.option(
    "--data",
    metavar="ROOT",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where datasets are; PARTAVG_DATA or the user's cache folder if not given.",
)
schemes = click.option(
    "--schemes",
    help="Which schemes, separated by commas; 4-parts averages in 4 parts.  "
    "[default: those of the recipe, or periodic,partial,synchronous]",
)
settings_to_tune = completion.settings
seeds = click.option("--seeds", default=1, show_default=True, help="How many seeds to run.")
out = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="The folder to write to."
)
resume = click.option("--resume", is_flag=True, help="Continue what is in --out.")
force = click.option("--force", is_flag=True, help="Overwrite the runs that are in --out.")
overwrite = click.option("--force", is_flag=True, help="Overwrite files that are there already.")


def check_file(path: Path | None, suffix: str, *, force: bool) -> None:
    """Raise a ValueError for a file to write that is of another kind, or there already."""
    if path and path.suffix != suffix:
        raise ValueError(f"{path} does not end in {suffix}: name the file to write so")
    check_new(path, force=force)


def check_resume(out: Path | None, *, resume: bool, force: bool) -> None:
    """Raise a ValueError where it is not clear what to resume."""
    if resume and (out is None or force):
        raise ValueError("--resume needs --out, the folder to go on in, and no --force")
