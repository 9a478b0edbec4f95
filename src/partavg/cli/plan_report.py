"""What `partavg plan` found, for people and as numbers."""

from rich import box
from rich.table import Table

from partavg.cost import Cost, Network, Recommendation, Workload
from partavg.cost.recommend import long_enough
from partavg.folder import Row


def table(
    found: list[Cost], chosen: Cost, steps: int, beside: list[float], *, ranks: bool = False
) -> Table:
    """A line per plan; per worker, or rank, and iteration, but for the epoch."""
    memory = "MB that each worker keeps beside the model, its gradients and its optimizer"
    if ranks:
        memory = "MB of the largest rank's rows: parameters, gradients, the solver's, what is sent"
    shown = Table(
        box=box.SIMPLE_HEAD,
        caption=f"Per {'rank' if ranks else 'worker'} and iteration; as many bytes are received as "
        "sent; a message is one all-reduce. Overlapped: training goes on for `delay` steps during "
        f"an exchange. Memory: {memory}.",
        caption_justify="left",
    )
    shown.add_column("plan", no_wrap=True)
    for heading in (
        "parts",
        "delay",
        "MB sent",
        "messages",
        "exchange",
        "wait",
        "iteration",
        "epoch",
        "memory",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each, kept in zip(found, beside, strict=True):
        last = each.schedule.parts == each.schedule.interval and not each.delay
        shown.add_row(
            each.name,
            str(each.schedule.parts),
            str(each.delay),
            f"{each.traffic / 1e6:,.3g}",
            f"{each.messages:.3g}",
            _time(each.exchanging),
            _time(each.waiting),
            _time(each.seconds),
            _time(each.seconds * steps),
            f"{kept / 1e6:,.0f}" if kept > 1e7 else f"{kept / 1e6:.2g}",
            style="bold" if each is chosen else "",
            end_section=last,
        )
    return shown


def sentences(chosen: Recommendation, work: Workload, network: Network) -> list[str]:
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


def numbers(found: list[Cost], chosen: Recommendation, steps: int, beside: list[float]) -> Row:
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
                "memory_bytes": kept,
            }
            for each, kept in zip(found, beside, strict=True)
        ],
    }


def _time(seconds: float) -> str:
    """In a unit that leaves a number a person can read."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} s"
