"""Driving a sweep from the command line: processes that share it, progress, what it ends with."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep

import click
import torch

from partavg import build
from partavg import recipe as recipes
from partavg.backends.processes import OneProcess
from partavg.cli import drive, options, output
from partavg.cli.datasets import Datasets
from partavg.cli.resume import program, resuming_words
from partavg.cli.sweep_report import announced, report
from partavg.comparison import schemes_of
from partavg.config import Execution
from partavg.config_toml import dump_sections, section
from partavg.data.root import root
from partavg.folder import next_folder, write_text
from partavg.outputs import check_page
from partavg.recipe_run import Run, execution, meter_of
from partavg.recipes.files import read
from partavg.session import Diverged
from partavg.sinks.progress import Display, display
from partavg.stopping import StopRequest, stop_request
from partavg.sweeps.claim import claim
from partavg.sweeps.of_recipe import AROUND, RecipeSweep, axis_around
from partavg.sweeps.place import ENGINE, HELPERS, check_free, clear
from partavg.sweeps.runner import Clock, Sweeping, Task
from partavg.sweeps.search import Halving, Listed, Search
from partavg.sweeps.space import Point, axes_of

_MOST_JOBS = 8
_VALIDATION = 0.1
_JOINS = "PARTAVG_JOINS_SWEEP"


def sweep_command(
    context: click.Context,
    recipe: str,
    grids: Sequence[str],
    schemes: str | None,
    seeds: int,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    *,
    resume: bool,
    force: bool,
    validation: float | None = None,
    tune_seeds: int = 1,
    budget: int | None = None,
    search: str = "listed",
    sampler: str = "tpe",
    storage: str | None = None,
    jobs: int | None = None,
    tune: Iterable[str] = ("training.lr",),
    factors: Sequence[float] = AROUND,
) -> None:
    """What `partavg sweep` does, and `partavg compare --tune`.

    Without `grids` each setting of `tune` has values around that of the recipe.
    """
    with output.bad_input(), output.plain_warnings():
        options.check_resume(out, resume=resume, force=force)
        if out is None and output.launched():
            raise ValueError("ranks of torchrun share a sweep by its folder: give --out")
        if force and output.launched():
            raise ValueError("--force would remove what other ranks work on: use another --out")
        if storage and search != "optuna":
            raise ValueError(f"--storage {storage} is Optuna's: add --search optuna")
        chosen = recipes.load(recipe, overrides)
        own = chosen.config().training
        if validation is None:
            validation = own.validation or _VALIDATION
        named = tuple(name.strip() for name in (schemes or "").split(",") if name.strip())
        sweep = RecipeSweep(
            name=chosen.name,
            recipe=chosen,
            schemes=named if schemes else schemes_of(chosen),
            axes=axes_of(grids),
            seeds=seeds,
            tune_seeds=tune_seeds,
            first=own.seed,
            out=out or next_folder("sweep"),
            validation=validation,
            budget=budget,
            search=search,
            sampler=sampler,
        )
        check_page(sweep.out / "report.html", force=force or resume)
        datasets = Datasets(root(data))
        if not grids:
            check = partial(_check_point, sweep, datasets)
            axes = tuple(axis_around(chosen, key, factors, check) for key in tune)
            sweep = replace(sweep, axes=axes)
        sweeping = prepared(sweep, datasets, storage, resume=resume, force=force)
        jobs = jobs or jobs_for(sweep)
    drive_sweep(context, sweep, sweeping, datasets, jobs)


def search_of(sweep: RecipeSweep, datasets: Datasets, storage: str | None) -> Search:
    """What tries settings in the way that a sweep wants."""
    if sweep.search == "optuna":
        from partavg.sweeps.optuna_search import OptunaSearch

        return OptunaSearch(sweep, storage)
    if sweep.search == "listed":
        return Listed(sweep)
    config = sweep.tuning(sweep.schemes[0], sweep.points[0])
    every = build.metrics(config).evaluate_every
    if not every:
        raise ValueError(
            "metrics.evaluate_every = 0 measures only at the end, and halving compares runs on "
            "the way: set it above 0"
        )
    return Halving(sweep, build.steps(config, datasets(config.data)), every)


def prepared(
    sweep: RecipeSweep, datasets: Datasets, storage: str | None, *, resume: bool, force: bool
) -> Sweeping:
    """A sweep that can begin; a ValueError says what is wrong with it."""
    sweep.check()
    if _joins():
        sweep.check_same()  # what is there the leader may be writing now
    else:
        check_free(sweep, resume=resume, force=force)
    search = search_of(sweep, datasets, storage)
    for point in sweep.points if sweep.search != "optuna" else ():
        _check_point(sweep, datasets, point)
    sweeping = Sweeping(sweep, search)
    if not _joins() and (force or not sweep.begun):
        _check_metrics(sweep, datasets)
    if sweep.begun and force:
        clear(sweep)
    elif sweep.begun and not _joins():
        _check_unchanged(sweep, sweeping, datasets)
    return sweeping


def _check_point(sweep: RecipeSweep, datasets: Datasets, point: Point) -> None:
    """Raise a ValueError for settings that a scheme could not be trained with."""
    for scheme in sweep.schemes:
        config = sweep.tuning(scheme, point)
        build.check(config, datasets(config.data))


def _check_metrics(sweep: RecipeSweep, datasets: Datasets) -> None:
    """Raise a ValueError for metrics that cannot be measured, before anything is written."""
    config = sweep.tuning(sweep.schemes[0], _first(sweep))
    if config.metrics.extra:
        plain = replace(config, engine=Execution(name="looped", device=config.engine.device))
        samples = datasets(config.data)
        meter_of(plain, samples, build.simulation(plain, samples, build.device(plain)))


def _check_unchanged(sweep: RecipeSweep, sweeping: Sweeping, datasets: Datasets) -> None:
    """Raise a ValueError if runs that are there were made of another recipe, code or data."""
    fingerprints = datasets(sweep.recipe.config().data).fingerprints
    for task in sweeping.begun():
        wanted = sweep.config(task)
        stored = task.entry.folder.stored_config(wanted)  # which checks all but the budget
        task.entry.folder.check_data(fingerprints)
        for key in ("steps", "epochs"):
            old, new = getattr(stored.training, key), getattr(wanted.training, key)
            if old != new:
                raise ValueError(
                    f"{task.entry.folder.path} was started with training.{key} = {old}, and not "
                    f"{new}: resume the sweep as it was, or use another --out"
                )


def drive_sweep(
    context: click.Context, sweep: RecipeSweep, sweeping: Sweeping, datasets: Datasets, jobs: int
) -> None:
    """Work a sweep off, alone or with others, and say what it found."""
    console = output.console()
    again = [*(["python", *program(context)] if program(context) else ["partavg"])]
    again += resuming_words(context, sweep.out)
    if _joins():
        _follow_leader(sweep.out)
    else:
        with output.bad_input(), output.plain_warnings():
            sweep.write()
            _choose_engine(sweep, datasets)
    with output.bad_input():
        engine = section(read(sweep.out / ENGINE).get("engine", {}), Execution, "engine")
    with (
        drive.early_ends(again),
        output.plain_warnings(),
        stop_request() as request,
        _helpers(context, sweep.out, jobs),
        display(console) as shown,
    ):
        clock = Clock(sweeping)
        work = _Worker(sweep, datasets, engine, shown, request, again)
        if not _joins():
            shown.say(f"engine: {engine.name}; {clock}")
        sweeping.work(work, announced(sweeping, shown, clock) if not _joins() else None)
    if not _joins():
        with output.bad_input(), drive.early_ends(again):
            report(sweeping, console)


def jobs_for(sweep: RecipeSweep) -> int:
    """How many runs beside each other: on a GPU one after another is about as fast."""
    if output.launched() or build.device(sweep.recipe.config()).type != "cpu":
        return 1
    return min(os.cpu_count() or 1, _MOST_JOBS)


class _Worker:
    """Trains the tasks of a sweep, one after another."""

    def __init__(
        self,
        sweep: RecipeSweep,
        datasets: Datasets,
        engine: Execution,
        shown: Display,
        request: StopRequest,
        again: list[str],
    ) -> None:
        self._sweep, self._datasets, self._engine = sweep, datasets, engine
        self._shown, self._request, self._again = shown, request, again

    def __call__(self, task: Task) -> None:
        """Train a task from where it was left."""
        config = replace(self._sweep.config(task), engine=self._engine)
        folder, samples = task.entry.folder, self._datasets(config.data)
        with output.bad_input(), drive.early_ends(self._again):
            run = Run(config, samples, folder, resume=folder.exists, force=False)
        with suppress(Diverged):  # its folder says so
            drive.train(run, task.label, self._shown, self._request, "sweep", until=task.until)


def _choose_engine(sweep: RecipeSweep, datasets: Datasets) -> None:
    """Let all runs compute in the same way: an engine is timed once, by whoever comes first."""
    path = sweep.out / ENGINE
    while not path.exists():
        with claim(path, sweep.out / "locks") as ours:
            if ours and not path.exists():
                write_text(path, dump_sections({"engine": _timed(sweep, datasets)}))
        if not ours:
            sleep(0.1)


def _timed(sweep: RecipeSweep, datasets: Datasets) -> Execution:
    config = sweep.tuning(sweep.schemes[0], _first(sweep))
    device, samples = build.device(config), datasets(config.data)
    simulation = build.simulation(config, samples, device)
    return execution(config, simulation, device, OneProcess())


def _first(sweep: RecipeSweep) -> tuple[tuple[str, object], ...]:
    return tuple((axis.key, (axis.ends or axis.values)[0]) for axis in sweep.axes)


def _joins() -> bool:
    """Whether another process leads this sweep: torchrun's first rank, or who started this one."""
    return _JOINS in os.environ or not output.speaks()


def _follow_leader(out: Path) -> None:
    """Wait for what the leader decides; end, saving all, when it is gone."""
    while not (out / ENGINE).exists():
        sleep(0.1)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if _JOINS in os.environ:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _helpers(context: click.Context, out: Path, jobs: int) -> Iterator[None]:
    """Have more processes work on a sweep; each has its share of the cores."""
    if jobs < 2 or _joins():
        yield
        return
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    torch.set_num_threads(int(threads))
    environment = {**os.environ, _JOINS: "1", "OMP_NUM_THREADS": threads}
    words = [sys.executable, "-m", "partavg", *resuming_words(context, out)]
    own = program(context)
    command = [sys.executable, *own, *words[3:]] if own else words
    with (out / HELPERS).open("w") as log:
        helpers = [
            subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            for _ in range(jobs - 1)
        ]
        try:
            yield
        finally:
            _end(helpers)


def _end(helpers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let helpers save what they are at, and end."""
    for helper in helpers:
        if helper.poll() is None:
            helper.terminate()
    for helper in helpers:
        helper.wait()
