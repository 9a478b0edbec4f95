"""`partavg plan`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partavg.cli import options

if TYPE_CHECKING:
    from partavg.cost.dealt import Dealt
    from partavg.cost.setting import Setting

EXAMPLES = """\b
Examples:
  partavg plan --model resnet50 --step-ms 120 --bandwidth 100Mbit --latency 20ms --workers 16
  partavg plan --model gpt2 --step-ms 900 --bandwidth 1Gbit --workers 8 --interval 32 --wire bf16
  partavg plan --parameters 7000000 --step-ms 50 --bandwidth 12.5MB --workers 4 --json plan.json
  partavg plan --model gpt2 --dtype bf16 --solver diloco --step-ms 900 --bandwidth 1GB --workers 8
  partavg plan --model resnet20 --step-ms 8 --workers 128 --ranks 4 --bandwidth 300GB
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
@click.option(
    "--statistics",
    type=click.IntRange(min=0),
    default=0,
    help="BatchNorm's numbers that are averaged, too: two for each channel.",
)
@click.option(
    "--freeze-at",
    type=click.FloatRange(0, 1, min_open=True),
    help="The share of a run after which these are frozen and not sent (averaging.freeze_at).",
)
@click.option("--step-ms", type=float, required=True, help="Milliseconds of a step by itself.")
@click.option("--bandwidth", metavar="SPEED", help="Of each link: 100Mbit, 1GB.")
@click.option("--latency", metavar="TIME", help="One way: 20ms; 0ms unless given.")
@click.option("--workers", type=int, help="How many train.")
@click.option(
    "--ranks",
    type=int,
    help="Processes or GPUs over which a simulation deals them; --step-ms is of all on one.",
)
@click.option(
    "--clients", type=int, help="Of which the workers are the active ones, in such a simulation."
)
@click.option(
    "--measure",
    is_flag=True,
    help="Find bandwidth, latency and workers out, as the ranks that torchrun started.",
)
@click.option("--interval", default=8, show_default=True, help="Steps between averages of a part.")
@click.option(
    "--wire",
    type=click.Choice(["full", "bf16", "int8", "int4", "top-k"]),
    default="full",
    show_default=True,
    help="Of messages.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bf16", "fp16", "float64"]),
    default="float32",
    show_default=True,
    help="Of the model.",
)
@click.option("--solver", help="On top of your optimizer, as attach takes it: diloco, scaffold.")
@click.option(
    "--memory",
    type=click.Choice(["full", "params", "host", "params+host"]),
    default="full",
    show_default=True,
    help="Where the solver's memory is, and in which type.",
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
    statistics: int,
    freeze_at: float | None,
    step_ms: float,
    bandwidth: str | None,
    latency: str | None,
    workers: int | None,
    ranks: int | None,
    clients: int | None,
    measure: bool,
    interval: int,
    wire: str,
    dtype: str,
    solver: str | None,
    memory: str,
    backend: str,
    samples: int,
    batch: int,
    kept: Path | None,
    force: bool,
) -> None:
    """Say what averaging plans cost on a network, and which one to choose.

    For periodic, partial and in-between averaging at one interval, at once and overlapped with
    training: bytes, messages and time per iteration, the time of an epoch, and what is kept in
    memory beside the model. docs/plan.md has the equations and how they compare with measurements.

    With --ranks the workers are those of a simulation: how many rows and how much memory each rank
    has, what goes between ranks, and how many times as fast they are.

    Started by torchrun on the machines that are to train (torchrun … -m partavg plan --measure …)
    it measures the network between them.
    """
    from partavg.cli import link, output, plan_ranks, plan_report
    from partavg.core.schedule import Schedule
    from partavg.cost import Workload, candidates, cost, recommend
    from partavg.folder import write_json

    with output.bad_input():
        options.check_file(kept, ".json", force=force)
        others = {"--measure": measure, "--wire": wire != "full", "--memory": memory != "full"}
        dealt = _dealt(workers, ranks, clients, others)
        setting = _setting(solver, wire, dtype, memory, simulated=bool(dealt))
        size = _shared(_size(model, parameters), local)
        numbers, beside_them = _with_statistics(size, statistics, freeze_at)
        work = Workload(numbers, step_ms / 1e3, setting.bytes_per_number)
        find = link.measured if measure else link.described
        network, said = find(bandwidth, latency, ranks or workers, backend)
        if not output.speaks():
            return
        if dealt:
            work = replace(work, step=dealt.step(work.step, network))
        steps = _steps(samples, batch, dealt.workers if dealt else network.workers)
        found = candidates(work, network, interval)
        chosen = recommend(found)
        console = output.console()
        click.echo(
            f"{model or 'model'}: {size:,} parameters{beside_them}, {_megabytes(work.size)} MB "
            f"({wire}); {dealt.said if dealt else f'{network.workers} workers'}, steps of "
            f"{step_ms:g} ms{' for all in one process' if dealt else ''}, {steps:,} in an epoch; "
            f"{said}"
        )
        everything = [cost(work, network, Schedule.synchronous())] * (interval > 1) + found
        if dealt:
            beside = [dealt.memory(setting, size, local, each) for each in everything]
            found_of_ranks = plan_ranks.numbers(dealt, setting, (size, local), step_ms, chosen.cost)
        else:
            beside = [setting.beside(size, each, network.workers) for each in everything]
            found_of_ranks = {}
        console.print(plan_report.table(everything, chosen.cost, steps, beside, ranks=bool(dealt)))
        sentences = plan_report.sentences(chosen, work, network)
        for sentence in [*sentences, *plan_ranks.sentences(found_of_ranks)]:
            console.print(sentence, highlight=False, soft_wrap=True)
        if kept:
            numbers_of_all = plan_report.numbers(everything, chosen, steps, beside)
            write_json(kept, {**numbers_of_all, **found_of_ranks})
            click.echo(f"numbers: {kept}")


def _dealt(
    workers: int | None,
    ranks: int | None,
    clients: int | None,
    others: dict[str, bool],
) -> "Dealt | None":
    """The workers of a simulation over its ranks; None where each rank trains one model."""
    from partavg.cost.dealt import Dealt

    if ranks is None:
        if clients is not None:
            raise ValueError("--clients are those of a simulation over ranks: give --ranks, too")
        return None
    if workers is None:
        raise ValueError("--ranks share the workers of a simulation: give --workers, too")
    for option, given in others.items():
        if given:
            raise ValueError(f"{option} is not for a simulation: leave it out, or --ranks")
    return Dealt(workers, ranks, clients)


def _setting(
    solver: str | None, wire: str, dtype: str, memory: str, *, simulated: bool
) -> "Setting":
    """What is attached, or simulated, from the names of the command line."""
    from partavg.core.abilities import below
    from partavg.cost.setting import Setting
    from partavg.solvers import SOLVERS

    width = {"bf16": 2, "fp16": 2, "float32": 4, "float64": 8}[dtype]
    if solver is None:
        return Setting(SOLVERS["sgd"]() if simulated else None, wire, width, memory)
    made = SOLVERS.find(solver, "--solver")()
    if below(made) is None and not simulated:
        raise ValueError(
            f"--solver {solver} takes local steps, and so does your optimizer: leave it out, or "
            f"use one that goes on top, like diloco"
        )
    return Setting(made, wire, width, memory)


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


def _with_statistics(parameters: int, statistics: int, freeze_at: float | None) -> tuple[int, str]:
    """How many numbers an averaging of all parts sends, in the mean over a run, and why."""
    if freeze_at is not None and not statistics:
        raise ValueError(
            "--freeze-at is for statistics that are averaged until then: give --statistics, how "
            "many there are"
        )
    if not statistics:
        return parameters, ""
    share = 1.0 if freeze_at is None else freeze_at
    until = "" if freeze_at is None else f" for {freeze_at:.0%} of the run".replace("%", " %")
    return parameters + round(share * statistics), f" and {statistics:,} statistics{until}"


def _steps(samples: int, batch: int, workers: int) -> int:
    if min(samples, batch) < 1:
        raise ValueError(f"--samples {samples} and --batch {batch} must be 1 or more: count anew")
    return max(1, round(samples / (batch * workers)))


def _megabytes(size: float) -> str:
    """With a digit after the point, or as many as a small message needs to be seen."""
    millions = size / 1e6
    return f"{millions:,.1f}" if millions >= 1 else f"{millions:.2g}"
