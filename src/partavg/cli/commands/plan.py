"""`partavg plan`."""

from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg plan --model resnet50 --step-ms 120 --bandwidth 100Mbit --latency 20ms --workers 16
  partavg plan --model gpt2 --step-ms 900 --bandwidth 1Gbit --workers 8 --interval 32 --wire bf16
  partavg plan --parameters 7000000 --step-ms 50 --bandwidth 12.5MB --workers 4 --json plan.json
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--model",
    help="A well-known model, as in torchvision, one of ours, or your own file.py:name.",
)
@click.option("--parameters", type=int, help="How many parameters any other model has.")
@click.option(
    "--local", type=int, default=0, help="How many of them are never averaged (averaging.local)."
)
@click.option("--step-ms", type=float, required=True, help="Milliseconds of a step by itself.")
@click.option("--bandwidth", required=True, metavar="SPEED", help="Of each link: 100Mbit, 1GB.")
@click.option("--latency", default="0ms", show_default=True, metavar="TIME", help="One way: 20ms.")
@click.option("--workers", type=int, required=True, help="How many train.")
@click.option("--interval", default=8, show_default=True, help="Steps between averages of a part.")
@click.option(
    "--wire",
    type=click.Choice(["full", "bf16", "int8", "int4", "top-k"]),
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
@options.overwrite
def plan(
    model: str | None,
    parameters: int | None,
    local: int,
    step_ms: float,
    bandwidth: str,
    latency: str,
    workers: int,
    interval: int,
    wire: str,
    backend: str,
    samples: int,
    batch: int,
    kept: Path | None,
    force: bool,
) -> None:
    """Say what averaging plans cost on a network, and which one to choose.

    For periodic, partial and in-between averaging at one interval, at once and overlapped with
    training: bytes, messages and time per iteration, and the time of an epoch. docs/plan.md has the
    equations and how they compare with measurements.
    """
    from partavg.cli import output, plan_report, units
    from partavg.core.schedule import Schedule
    from partavg.core.wire_formats import WIRE_FORMATS
    from partavg.cost import Network, Workload, candidates, cost, recommend
    from partavg.folder import write_json

    with output.bad_input():
        options.check_file(kept, ".json", force=force)
        speed, trip = units.bandwidth(bandwidth), units.duration(latency)
        network = Network(workers, speed, trip, backend)
        per_number = WIRE_FORMATS[wire].bytes_per_number
        work = Workload(_shared(_size(model, parameters), local), step_ms / 1e3, per_number)
        steps = _steps(samples, batch, workers)
        found = candidates(work, network, interval)
        chosen = recommend(found)
        console = output.console()
        click.echo(
            f"{model or 'model'}: {work.parameters:,} parameters, {work.size / 1e6:,.1f} MB "
            f"({wire}); {workers} workers, steps of {step_ms:g} ms, {steps:,} in an epoch; "
            f"{bandwidth} per second, {latency}, {backend}"
        )
        everything = [cost(work, network, Schedule.synchronous())] * (interval > 1) + found
        console.print(plan_report.table(everything, chosen.cost, steps))
        for sentence in plan_report.sentences(chosen, work, network):
            console.print(sentence, highlight=False, soft_wrap=True)
        if kept:
            write_json(kept, plan_report.numbers(everything, chosen, steps))
            click.echo(f"numbers: {kept}")


def _size(model: str | None, parameters: int | None) -> int:
    """How many parameters: counted by the user, or known."""
    from partavg.cost import PARAMETERS
    from partavg.own_code import is_own
    from partavg.registry import check_name

    if (model is None) == (parameters is None):
        raise ValueError("the size of the model is not clear: give --model or --parameters")
    if parameters is not None:
        return parameters
    assert model is not None
    if is_own(model):
        return _counted(model)
    check_name("--model", model, PARAMETERS, "count its parameters and give --parameters")
    return PARAMETERS[model]


def _counted(name: str) -> int:
    """The trainable parameters of a model of the user's own, with its options as they are."""
    import torch

    from partavg.config import create
    from partavg.config_toml import parse
    from partavg.models import MODELS
    from partavg.registry import fitting

    offered = {"shape": None, "classes": None}
    if fitting(MODELS.find(name, "--model"), offered) != ((), {}):
        raise ValueError(
            f"--model = {name!r} depends on the data: count its parameters and give --parameters"
        )
    with torch.device("meta"):  # numbers of no size
        model = create("model", parse({"model": {"name": name}}).model, *offered.values())
    return sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)


def _shared(parameters: int, local: int) -> int:
    """How many parameters are averaged."""
    if not 0 <= local < parameters:
        raise ValueError(
            f"--local {local} of {parameters} parameters leaves none to average: use 0 to "
            f"{parameters - 1}"
        )
    return parameters - local


def _steps(samples: int, batch: int, workers: int) -> int:
    if min(samples, batch) < 1:
        raise ValueError(f"--samples {samples} and --batch {batch} must be 1 or more: count anew")
    return max(1, round(samples / (batch * workers)))
