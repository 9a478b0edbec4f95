"""`partavg plan`, as it is called."""

from pathlib import Path
from typing import Any

import click

EXAMPLES = """\b
Examples:
  partavg plan --model resnet50 --step-ms 120 --bandwidth 100Mbit --latency 20ms --workers 16
  partavg plan --model gpt2 --step-ms 900 --bandwidth 1Gbit --workers 8 --interval 32 --wire bf16
  partavg plan --parameters 7000000 --step-ms 50 --bandwidth 12.5MB --workers 4 --json plan.json
"""


@click.command(epilog=EXAMPLES)
@click.option("--model", help="The name of a well-known model, as in torchvision, or of ours.")
@click.option("--parameters", type=int, help="How many parameters any other model has.")
@click.option("--step-ms", type=float, required=True, help="Milliseconds of a step by itself.")
@click.option("--bandwidth", required=True, metavar="SPEED", help="Of each link: 100Mbit, 1GB.")
@click.option("--latency", default="0ms", show_default=True, metavar="TIME", help="One way: 20ms.")
@click.option("--workers", type=int, required=True, help="How many train.")
@click.option("--interval", default=8, show_default=True, help="Steps between averages of a part.")
@click.option(
    "--wire",
    type=click.Choice(["full", "bf16", "int8"]),
    default="full",
    show_default=True,
    help="Of messages.",
)
@click.option(
    "--backend",
    type=click.Choice(["gloo", "nccl"]),
    default="gloo",
    show_default=True,
    help="Whose all-reduce.",
)
@click.option(
    "--samples", default=1_281_167, show_default=True, help="In an epoch, over all workers."
)
@click.option("--batch", default=32, show_default=True, help="Samples per worker and step.")
@click.option(
    "--json",
    "kept",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all numbers to this file.",
)
def plan(**given: Any) -> None:
    """Say what averaging plans cost on a network, and which one to choose.

    For periodic, partial and in-between averaging at one interval, at once and overlapped with
    training: bytes, messages and time per iteration, and the time of an epoch. docs/plan.md has the
    equations and how they compare with measurements.
    """
    from partavg.cli.plan import plan

    plan(**given)
