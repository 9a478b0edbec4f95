"""`partavg plan`."""

from pathlib import Path

import click
from rich import box
from rich.table import Table

from partavg.cli import drive, options, units
from partavg.core.schedule import Schedule
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost import PARAMETERS, Cost, Network, Workload, candidates, cost, recommend
from partavg.cost.recommend import Recommendation, long_enough
from partavg.folder import Row, write_json
from partavg.tables import check_name


def plan(
    model: str | None,
    parameters: int | None,
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
) -> None:
    """Say what averaging plans cost on a network, and which one to choose."""
    with drive.bad_input():
        options.check_suffix(kept, ".json")
        speed, trip = units.bandwidth(bandwidth), units.duration(latency)
        network = Network(workers, speed, trip, backend)
        work = Workload(
            _size(model, parameters), step_ms / 1e3, WIRE_FORMATS[wire].bytes_per_number
        )
        steps = _steps(samples, batch, workers)
        found = candidates(work, network, interval)
        chosen = recommend(found)
        console = drive.console()
        click.echo(
            f"{model or 'model'}: {work.parameters:,} parameters, {work.size / 1e6:,.1f} MB "
            f"({wire}); {workers} workers, steps of {step_ms:g} ms, {steps:,} in an epoch; "
            f"{bandwidth} per second, {latency}, {backend}"
        )
        everything = [cost(work, network, Schedule.synchronous())] * (interval > 1) + found
        console.print(_table(everything, chosen.cost, steps))
        for sentence in _sentences(chosen, work, network):
            console.print(sentence, highlight=False, soft_wrap=True)
        if kept:
            write_json(kept, _numbers(everything, chosen, steps))
            click.echo(f"numbers: {kept}")


def _size(model: str | None, parameters: int | None) -> int:
    """How many parameters: counted by the user, or known."""
    if (model is None) == (parameters is None):
        raise ValueError("the size of the model is not clear: give --model or --parameters")
    if parameters is not None:
        return parameters
    assert model is not None
    check_name("--model", model, PARAMETERS, "count its parameters and give --parameters")
    return PARAMETERS[model]


def _steps(samples: int, batch: int, workers: int) -> int:
    if min(samples, batch) < 1:
        raise ValueError(f"--samples {samples} and --batch {batch} must be 1 or more: count anew")
    return max(1, round(samples / (batch * workers)))


def _table(found: list[Cost], chosen: Cost, steps: int) -> Table:
    """A line per plan; per worker and iteration, but for the epoch."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="Per worker and iteration; as many bytes are received as sent; a message is one "
        "all-reduce. Overlapped: training goes on for `delay` steps during an exchange.",
        caption_justify="left",
    )
    table.add_column("plan", no_wrap=True)
    for heading in (
        "parts",
        "delay",
        "MB sent",
        "messages",
        "exchange",
        "wait",
        "iteration",
        "epoch",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        last = each.schedule.parts == each.schedule.interval and not each.delay
        table.add_row(
            each.name,
            str(each.schedule.parts),
            str(each.delay),
            f"{each.traffic / 1e6:,.3g}",
            f"{each.messages:.3g}",
            _time(each.exchanging),
            _time(each.waiting),
            _time(each.seconds),
            _time(each.seconds * steps),
            style="bold" if each is chosen else "",
            end_section=last,
        )
    return table


def _time(seconds: float) -> str:
    """In a unit that leaves a number a person can read."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} s"


def _sentences(chosen: Recommendation, work: Workload, network: Network) -> list[str]:
    """What to do, and what would help where communication decides all the same."""
    schedule = chosen.cost.schedule
    call = f"interval={schedule.interval}, parts={schedule.parts}, delay={chosen.cost.delay}"
    said = [f"Recommended: {chosen.cost.name} ({call}): {chosen.reason}."]
    longer = long_enough(work, network, schedule.interval)
    if longer > schedule.interval:
        share = chosen.cost.waiting / chosen.cost.seconds
        said.append(
            f"Even so {100 * share:.0f} % of the time is spent waiting: only from an interval of "
            f"about {longer} on do the steps take as long as the exchanges, and can hide them."
        )
    return said


def _numbers(found: list[Cost], chosen: Recommendation, steps: int) -> Row:
    """Everything, for other programs."""
    return {
        "steps_per_epoch": steps,
        "recommended": chosen.cost.name,
        "reason": chosen.reason,
        "plans": [
            {
                "name": each.name,
                "interval": each.schedule.interval,
                "parts": each.schedule.parts,
                "delay": each.delay,
                "bytes": each.traffic,
                "messages": each.messages,
                "exchange_seconds": each.exchanging,
                "wait_seconds": each.waiting,
                "iteration_seconds": each.seconds,
                "epoch_seconds": each.seconds * steps,
            }
            for each in found
        ],
    }
