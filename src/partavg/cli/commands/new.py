"""`partavg new`."""

from pathlib import Path

import click

FILES = ("recipe.toml", "own.py")

EXAMPLES = """\b
Examples:
  partavg new mine
  partavg new mine --force
"""


@click.command(epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite a recipe.toml and an own.py in DIR.")
def new(folder: Path, force: bool) -> None:
    """Write a recipe with a model, data and a metric of your own into DIR, to run and to edit."""
    import shlex
    from importlib import resources

    from partavg.cli import output

    with output.bad_input():
        for path in (folder / name for name in FILES):
            if path.exists() and not force:
                raise ValueError(f"{path} is there already: use another folder, or --force")
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            text = resources.files("partavg").joinpath("starter", name).read_text("utf-8")
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(f"wrote {folder / name}")
    click.echo(f"edit them, or at once: {shlex.join(['partavg', 'compare', str(folder)])}")
