"""`partavg split`."""

from pathlib import Path

import click

from partavg.cli import options

_BLOCKS = " ▁▂▃▄▅▆▇█"

EXAMPLES = """\b
Examples:
  partavg split --plot
  partavg split recipe.toml --plot uneven.svg --set split.alpha=0.1
  partavg split recipe.toml --save split.npz
  partavg run recipe.toml --set split.name=saved --set split.path=split.npz
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@click.option(
    "--plot",
    is_flag=False,
    flag_value=Path("split.svg"),
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it, to split.svg or the file named.",
)
@click.option(
    "--save",
    "kept",
    is_flag=False,
    flag_value=Path("split.npz"),
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep it, in split.npz or the file named.",
)
@options.overwrite
@options.settings
@options.data
def split(
    recipe: str,
    plot: Path | None,
    kept: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    data: Path | None,
) -> None:
    """Show which samples the workers of RECIPE own: how many, of which classes.

    Of samples without classes, of which clients; of texts, of which sources. `--plot` draws it,
    `--save` keeps the split for other recipes.
    """
    import torch

    from partavg import build
    from partavg import recipe as recipes
    from partavg.cli import output
    from partavg.comparison import caveat
    from partavg.config import create
    from partavg.data.root import root
    from partavg.data.saved_split import save
    from partavg.folder import write_text
    from partavg.report.bars import bars

    with output.bad_input(), output.plain_warnings():
        options.check_file(plot, ".svg", force=force)
        options.check_file(kept, ".npz", force=force)
        config = recipes.load(recipe, overrides).config()
        samples = build.scaled(config, create("data", config.data, root(data)))
        owned = build.split(config, samples)
        labels, kinds, noun = samples.train.labels, samples.classes or 1, "classes"
        if labels is None and samples.writers is not None:
            labels, noun = samples.writers, "sources" if samples.train.tokens else "clients"
            kinds = int(labels.max()) + 1
        elif labels is None or not samples.classes:
            labels, kinds = torch.zeros(samples.train.size, dtype=torch.long), 1  # all of one kind
        counts = torch.stack([labels[own].bincount(minlength=kinds) for own in owned])
        click.echo(_picture(counts.tolist(), noun))
        if config.training.scale != 1:
            click.echo(caveat([{"scale": config.training.scale}]).capitalize())
        if plot:
            title = f"{config.data.name}, {config.split.name} split over {len(owned)} workers"
            write_text(plot, bars(title, counts.tolist()))
            click.echo(f"picture: {plot}")
        if kept:
            save(owned, kept)
            click.echo(f"saved: {kept}")


def _picture(counts: list[list[int]], noun: str) -> str:
    """A line per worker: its number of samples, and a block per class as high as its share."""
    lines = [f"worker  samples  {noun}"]
    for worker, row in enumerate(counts):
        highest = max(1, *row)
        blocks = "".join(_BLOCKS[-(-8 * count // highest)] for count in row)
        lines.append(f"{worker:6d}  {sum(row):7d}  {blocks}  {sum(c > 0 for c in row)}")
    sizes = [sum(row) for row in counts]
    classes = [sum(count > 0 for count in row) for row in counts]
    lines.append(
        f"{len(counts)} workers own {min(sizes)} to {max(sizes)} samples of {min(classes)} to "
        f"{max(classes)} of {len(counts[0])} {noun}"
    )
    return "\n".join(lines)
