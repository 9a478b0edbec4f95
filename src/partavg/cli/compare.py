"""`partavg compare`."""

from functools import partial
from pathlib import Path

from partavg import compare as comparing
from partavg import recipe as recipes
from partavg.build import check
from partavg.cli import drive, options
from partavg.cli.display import comparison_table
from partavg.cli.job import job
from partavg.config import create
from partavg.data.dataset import Dataset
from partavg.data.root import root
from partavg.report.page import write_page
from partavg.report.runs import of_entries
from partavg.sinks.progress import display


def compare(
    recipe: str,
    schemes: str | None,
    seeds: int,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Train the same task from the same start under several averaging schemes."""
    console = drive.console()
    with job() as this:
        with drive.bad_input(this.team), drive.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            chosen = recipes.load(recipe, overrides)
            out = this.out(out, "compare")
            named = [name.strip() for name in (schemes or "").split(",") if name.strip()]
            names = named if schemes else list(comparing.schemes_of(chosen))
            entries = comparing.plan(chosen, names, seeds, out)
            samples: Dataset = create("data", entries[0].config.data, root(data))
            for entry in entries:
                check(entry.config, samples)
            entries = this.continued(entries, resume=resume, force=force)
        again = this.command("compare", recipe, "--schemes", ",".join(names), "--seeds", str(seeds))
        again += [f"--set={override}" for override in overrides]
        again += [*(["--data", str(data)] if data else []), "--out", str(out), "--resume"]
        start = partial(this.start, resume=resume, force=force)
        with drive.early_ends(again):
            with drive.plain_warnings(), drive.stop_request() as request, display(console) as shown:
                diverged = drive.train_all(entries, samples, start, shown, request)
            if drive.speaks():
                results = comparing.results(entries)
                console.print(comparison_table(results))
                with drive.bad_input():
                    report = write_page(out / "report.html", of_entries(entries))
                found = f"run folders: {out}\nreport: {report}"
                said = found if diverged else f"{comparing.verdict(results)}\n{found}"
                console.print(said, highlight=False, soft_wrap=True)
        if diverged:
            drive.fail("; ".join(diverged), drive.DIVERGED)
