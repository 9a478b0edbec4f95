"""`partavg run`."""

from pathlib import Path

import click

from partavg import config as configs
from partavg.cli import drive
from partavg.cli.display import display
from partavg.folder import RunFolder
from partavg.run import Run

EXAMPLES = """\b
Examples:
  partavg run recipe.toml
  partavg run recipe.toml --set averaging.interval=8 --set training.seed=1
  partavg run runs/recipe-1/config.toml --out runs/recipe-1 --resume
"""


@click.command(epilog=EXAMPLES)
@click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a setting.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The run folder.")
@click.option("--resume", is_flag=True, help="Continue the run in --out from its checkpoint.")
@click.option("--force", is_flag=True, help="Overwrite the run in --out.")
def run(
    recipe: Path, overrides: tuple[str, ...], out: Path | None, resume: bool, force: bool
) -> None:
    """Train what RECIPE describes."""
    console = drive.console()
    with drive.bad_input():
        if resume and (out is None or force):
            raise ValueError("--resume needs --out, the folder of the run, and no --force")
        config = configs.load(recipe, overrides)
        folder = RunFolder(out or drive.next_folder(recipe.stem))
        if resume and folder.finished:
            folder.stored_config(config)
            click.echo(f"{folder.path} is finished already")
            return
        with drive.plain_warnings():
            data = configs.build("data", config.data)
            session = Run(config, data, folder, resume=resume, force=force)
    again = ["partavg", "run", str(folder.config_path), "--out", str(folder.path), "--resume"]
    with (
        drive.early_ends(again),
        drive.stop_request() as request,
        display(console) as shown,
    ):
        shown.say(f"engine: {session.config.engine.name} ({session.engine_reason})")
        drive.train(session, recipe.stem, shown, request)
    summary = folder.summary()
    click.echo(
        f"accuracy of u_K {100 * summary['accuracy']:.2f} %, training loss "
        f"{summary['train_loss']:.3f}, peak discrepancy {summary['peak_discrepancy']:.3g}, "
        f"{summary['bytes'] / 1e6:.1f} MB and {summary['messages']} messages per worker, "
        f"{summary['seconds']:.1f} s"
    )
    click.echo(f"run folder: {folder.path}")
