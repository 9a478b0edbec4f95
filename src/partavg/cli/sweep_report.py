"""What `partavg sweep` says: progress, tables, a page, a file of all that was tried."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from partavg.cli import output
from partavg.cli.comparison_table import comparison_table
from partavg.cli.fitted import Fitted
from partavg.comparison import Result
from partavg.folder import write_text
from partavg.report.page import write_page
from partavg.report.runs import grouped, of_entries
from partavg.report.scatter import figures
from partavg.report.sensitivity import sensitivity
from partavg.report.table import TextTable
from partavg.report.tried import of_tried
from partavg.sinks.progress import Display
from partavg.sweeps.findings import Tuned, lost, said, spent, tested, tuned
from partavg.sweeps.outcome import outcome
from partavg.sweeps.place import RESULTS
from partavg.sweeps.runner import Clock, Sweeping
from partavg.sweeps.space import called
from partavg.verdict import verdict

_HEAD = ("scheme", "best settings", "on validation samples", "settings tried", "diverged")


def announced(sweeping: Sweeping, shown: Display, clock: Clock) -> Callable[[], None]:
    """What tells of every trial and every test that is over, whoever trained it."""
    known: set[object] = set()

    def announce(*, quiet: bool = False) -> None:
        for one in tuned(sweeping):
            for tried in one.tried:
                mark = one.scheme, tried.trial.number, tried.trial.until
                if mark in known:
                    continue
                known.add(mark)
                if not quiet:
                    at = f" at step {tried.trial.until}" if tried.trial.until else ""
                    shown.say(
                        f"{one.scheme}, {called(tried.trial.point)}: {one.value(tried)} on "
                        f"validation samples{at} ({clock})"
                    )

            for entry in sweeping.tests(one.scheme):
                found = outcome(entry.folder)
                if found is None or entry.folder.path in known:
                    continue
                known.add(entry.folder.path)
                if not quiet:
                    ended = "diverged" if found.diverged else "tested"
                    shown.say(f"{one.scheme} seed {entry.seed}: {ended} ({clock})")

    announce(quiet=True)
    return announce


@dataclass(frozen=True, slots=True)
class Ended:
    """What a sweep found: numbers, sentences, and where all is written."""

    tuned: list[Tuned]
    results: list[Result]
    """Of the test, those that came to their end."""
    said: list[str]
    page: Path
    tried: Path

    @property
    def tables(self) -> list[Fitted]:
        """Best settings, and what they reached on the test set."""
        best = Fitted(_HEAD, _rows(self.tuned), words=_HEAD[1:2])
        return [best, comparison_table(self.results)] if self.results else [best]

    @property
    def lines(self) -> list[str]:
        """What stands below them."""
        return [*self.said, f"all that was tried: {self.tried}", f"report: {self.page}"]


def ended(sweeping: Sweeping) -> Ended:
    """Sum up what was found, and write the page and a file of all that was tried."""
    found, out = tuned(sweeping), sweeping.sweep.out
    results = [result for result in tested(sweeping) if result.summaries]
    sentences = said(found)
    if results:
        sentences.insert(1, f"On the test set, with fresh seeds: {verdict(results)}")
    sentences += [*lost(sweeping), *spent(results)]
    write_csv(out / RESULTS, found)
    entries = [entry for one in found for entry in sweeping.tests(one.scheme)]
    runs = of_entries([entry for entry in entries if entry.folder.finished])  # `lost` has others
    drawn = _as_grouped(found, [group.name for group in grouped(runs)])
    page = write_page(
        out / "report.html",
        runs,
        [TextTable("Best settings, chosen on validation samples", _HEAD, _rows(found))],
        said=sentences,
        figures=[*sensitivity(drawn), *figures(of_tried(drawn))],
    )
    return Ended(found, results, sentences, page, out / RESULTS)


def report(sweeping: Sweeping, console: Console) -> None:
    """Print and write what was found."""
    found = ended(sweeping)
    for table in found.tables:
        console.print(table)
    console.print("\n".join(found.lines), highlight=False, soft_wrap=True)
    if any(one.tried and not one.chosen for one in found.tuned):
        output.fail("a scheme trained to the end with none of its settings", output.DIVERGED)


def _as_grouped(found: list[Tuned], names: list[str]) -> list[Tuned]:
    """In the order in which the page gives out colors; those that are on it only here come last."""
    places = {name: place for place, name in enumerate(names)}
    return sorted(found, key=lambda one: places.get(one.scheme, len(places)))


def _rows(found: list[Tuned]) -> list[tuple[str, ...]]:
    return [
        (
            one.scheme,
            called(one.chosen.trial.point) if one.chosen else "–",
            one.value(one.chosen),
            str(len(one.tried)),
            str(one.diverged),
        )
        for one in found
    ]


def write_csv(path: Path, found: list[Tuned]) -> None:
    """Every setting that was tried, and what it reached on validation samples."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    keys = [axis.key for axis in found[0].axes] if found else []
    metric = found[0].metric if found else None
    reached = metric.called if metric else "value"
    table.writerow(("scheme", *keys, "step", f"validation {reached}", "chosen"))
    for one in found:
        for tried in one.tried:
            settings = [value for _, value in tried.trial.point]
            chosen = "yes" if one.chosen and tried.trial == one.chosen.trial else ""
            number = one.value(tried).removesuffix(" %")
            step = "" if tried.outcome.diverged else tried.outcome.step
            table.writerow((one.scheme, *settings, step, number, chosen))
    write_text(path, text.getvalue())
