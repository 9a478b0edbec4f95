"""What docs/robust.md shows of the study: tables of what benchmarks/robust_study.py measured."""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from robust_study import AGGREGATES, ATTACKS, FRACTIONS, SCHEMES, SLOWLY, Rows, rate, read

from partavg.student import quantile, two_sided


def accuracies(
    known: Rows, scheme: str, aggregate: str, attack: str, fraction: float, stage: str = "judging"
) -> list[float]:
    """Of all seeds that were judged, in their order, in %."""
    wanted = scheme, aggregate, attack if fraction else "none", fraction
    found = {
        task.seed: 100 * accuracy
        for task, accuracy in known.items()
        if task.stage == stage and task[1:5] == wanted
    }
    return [found[seed] for seed in sorted(found)]


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of their mean, by Student's t."""
    return quantile(0.95, len(values) - 1) * stdev(values) / sqrt(len(values))


def cells() -> Iterator[tuple[str, float]]:
    """All attacks at all fractions, nobody's first."""
    yield "none", 0.0
    yield from ((attack, fraction) for attack in ATTACKS for fraction in FRACTIONS)


def gains(
    known: Rows, aggregate: str, attack: str, fraction: float, stage: str = "judging"
) -> list[float]:
    """Partial minus periodic averaging, seed by seed."""
    one, other = (
        accuracies(known, scheme, aggregate, attack, fraction, stage)
        for scheme in ("partial", "periodic")
    )
    return [a - b for a, b in zip(one, other, strict=True)]


def accuracy_table(known: Rows, scheme: str) -> list[str]:
    """Means over seeds."""

    def cell(aggregate: str, attack: str, fraction: float) -> str:
        values = accuracies(known, scheme, aggregate, attack, fraction)
        return f"{mean(values):.1f} ± {half_width(values):.1f}"

    return _table(f"{scheme}, %", cell)


def gain_table(known: Rows) -> list[str]:
    """How much better partial averaging is; in bold where the interval leaves 0 out."""

    def cell(aggregate: str, attack: str, fraction: float) -> str:
        values = gains(known, aggregate, attack, fraction)
        text = f"{mean(values):+.1f} ± {half_width(values):.1f}"
        return f"**{text}**" if abs(mean(values)) > half_width(values) else text

    return _table("partial − periodic", cell)


def _table(title: str, cell: Callable[[str, str, float], str]) -> list[str]:
    lines = [f"| {title} | attackers | {' | '.join(AGGREGATES)} |", "|---|---|---|---|---|---|"]
    for attack, fraction in cells():
        values = " | ".join(cell(aggregate, attack, fraction) for aggregate in AGGREGATES)
        lines.append(f"| {attack} | {100 * fraction:.0f} % | {values} |")
    return lines


def slow_table(known: Rows) -> list[str]:
    """What was run again at half the rate."""
    lines = ["| at half the rate | attackers | periodic, % | partial, % | partial − periodic |"]
    lines.append("|---|---|---|---|---|")
    for aggregate, attack, fraction in SLOWLY:
        cell = aggregate, attack, fraction, "half rate"
        found = [accuracies(known, scheme, *cell) for scheme in SCHEMES] + [gains(known, *cell)]
        values = " | ".join(f"{mean(one):.1f} ± {half_width(one):.1f}" for one in found[:2])
        gain = f"{mean(found[2]):+.1f} ± {half_width(found[2]):.1f}"
        lines.append(f"| {aggregate}, {attack} | {100 * fraction:.0f} % | {values} | {gain} |")
    return lines


def significant(known: Rows) -> list[str]:
    """The cells whose difference is left by Holm's correction over all of them."""
    found = []
    for attack, fraction in cells():
        for aggregate in AGGREGATES:
            values = gains(known, aggregate, attack, fraction)
            t = mean(values) / (stdev(values) / sqrt(len(values)))
            found.append((two_sided(t, len(values) - 1), f"{aggregate}, {attack} {fraction:g}"))
    found.sort()
    left = takewhile(lambda at: found[at][0] <= 0.05 / (len(found) - at), range(len(found)))
    return [found[at][1] for at in left]


def rates_table(known: Rows) -> list[str]:
    """The rate that was chosen for each."""
    lines = [f"| learning rate | {' | '.join(AGGREGATES)} |", "|---|---|---|---|---|"]
    for scheme in SCHEMES:
        values = " | ".join(f"{rate(known, scheme, aggregate):g}" for aggregate in AGGREGATES)
        lines.append(f"| {scheme} | {values} |")
    return lines


def main() -> None:
    """Print all tables."""
    known = read(Path("results/robust/rows.csv"))
    tables = rates_table(known), *(accuracy_table(known, scheme) for scheme in SCHEMES)
    for table in (*tables, gain_table(known), slow_table(known)):
        print("\n".join(table), end="\n\n")
    print("left by Holm's correction:", "; ".join(significant(known)) or "none")


if __name__ == "__main__":
    main()
