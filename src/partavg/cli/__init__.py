"""The command line."""

import click

from partavg.cli.commands.compare import compare
from partavg.cli.commands.data import data
from partavg.cli.commands.flower import flower
from partavg.cli.commands.new import new
from partavg.cli.commands.plan import plan
from partavg.cli.commands.privacy import privacy
from partavg.cli.commands.recipes import recipes
from partavg.cli.commands.report import report
from partavg.cli.commands.reproduce import reproduce
from partavg.cli.commands.run import run
from partavg.cli.commands.split import split
from partavg.cli.commands.sweep import sweep
from partavg.cli.commands.theory import theory
from partavg.cli.commands.watch import watch

EXAMPLES = """\b
Examples:
  partavg compare
  partavg new mine
  partavg run recipe.toml --out runs/mine
  partavg reproduce table1 --rows cifar10 --scale 0.02
"""


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXAMPLES,
)
@click.version_option(package_name="partavg", message="%(prog)s %(version)s")
def main() -> None:
    """Partial model averaging for federated learning and local SGD.

    Start with `partavg compare`: it trains 64 workers on data that comes with the package and
    shows what partial averaging does.

    Exit codes: 0 done, 2 bad input, a full disk or a sink that fails, 3 training diverged, 4 a
    rank was lost (resumable), 130 stopped with Ctrl-C (resumable).
    """


for command in (
    compare,
    data,
    flower,
    new,
    plan,
    privacy,
    recipes,
    report,
    reproduce,
    run,
    split,
    sweep,
    theory,
    watch,
):
    main.add_command(command)
