"""The command line."""

import click

from partavg.cli.compare import compare
from partavg.cli.data import data_command
from partavg.cli.flower import flower
from partavg.cli.plan import plan
from partavg.cli.recipes import recipe_command
from partavg.cli.report import report
from partavg.cli.reproduce import reproduce
from partavg.cli.run import run
from partavg.cli.split import split
from partavg.cli.theory import theory
from partavg.cli.watch import watch


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="partavg", message="%(prog)s %(version)s")
def main() -> None:
    """Partial model averaging for federated learning and local SGD.

    Start with `partavg compare`: it trains 64 workers on data that comes with the package and
    shows what partial averaging does.

    Exit codes: 0 done, 2 bad input, 3 training diverged, 4 a rank was lost (resumable), 130 stopped
    with Ctrl-C (resumable).
    """


main.add_command(compare)
main.add_command(data_command, "data")
main.add_command(flower)
main.add_command(plan)
main.add_command(recipe_command, "recipes")
main.add_command(report)
main.add_command(reproduce)
main.add_command(run)
main.add_command(split)
main.add_command(theory)
main.add_command(watch)
