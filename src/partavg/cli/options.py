"""Options that several commands have."""

from pathlib import Path

import click

recipe = click.argument("recipe", metavar="RECIPE")
settings = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a setting."
)
data = click.option(
    "--data",
    metavar="ROOT",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where datasets are; PARTAVG_DATA or the user's cache folder if not given.",
)
seeds = click.option("--seeds", default=1, show_default=True, help="How many seeds to run.")
out = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="The folder to write to."
)
resume = click.option("--resume", is_flag=True, help="Continue what is in --out.")
force = click.option("--force", is_flag=True, help="Overwrite what is in --out.")


def check_suffix(path: Path | None, suffix: str) -> None:
    """Raise a ValueError before a file of another kind, perhaps a recipe, is overwritten."""
    if path and path.suffix != suffix:
        raise ValueError(f"{path} does not end in {suffix}: name the file to write so")


def check_resume(out: Path | None, *, resume: bool, force: bool) -> None:
    """Raise a ValueError where it is not clear what to resume."""
    if resume and (out is None or force):
        raise ValueError("--resume needs --out, the folder to go on in, and no --force")
