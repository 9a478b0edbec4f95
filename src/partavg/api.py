"""From Python, what the command line does: one run, or schemes and seeds side by side."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partavg import comparison
from partavg.backends.simulate import Simulation
from partavg.comparison import StartedRun
from partavg.config import create
from partavg.config_toml import assignment
from partavg.core.arguments import check_kind, check_whole
from partavg.core.schedule import Schedule
from partavg.data.root import root
from partavg.evaluation import Asked
from partavg.folder import RunFolder, next_folder
from partavg.notebook import Comparison, Results, Table, load_run, shown_here
from partavg.outputs import check_page
from partavg.recipe import load
from partavg.recipe_run import Run
from partavg.registry import mismatch
from partavg.report.page import write_page
from partavg.report.runs import gather
from partavg.sentences import shown
from partavg.session import Diverged, Session, Stop
from partavg.simulation_run import SimulationRun, TestSplit, check_simulation, in_python
from partavg.sinks import sinks_of
from partavg.sinks.progress import Display
from partavg.sinks.sink import Sink, SinkLike
from partavg.starts import Starts
from partavg.stopping import Stopped, stop_request, train_session
from partavg.sweeps.place import check_no_sweep

_MOST_SEEDS = 10_000


def follow(
    simulation: Simulation,
    until: int,
    *,
    test: Any = None,
    test_split: TestSplit = None,
    every: int = 10,
    name: str = "run",
    metrics: Asked = (),
    sinks: Sequence[SinkLike] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    stop: Stop | None = None,
    best: str = "",
    checkpoint_every: int = 100,
) -> Table:
    """Train up to step `until` and show it as it goes: loss, discrepancy, accuracy on `test`.

    They are measured `every` so many steps and at the end, and returned as a table of that name;
    `metrics` lists more: names, functions of (outputs, targets), Metrics. In a notebook a bar and
    figures grow in place, in a terminal it is a bar, elsewhere lines. `sinks` get the same rows:
    functions of a row, sinks, or names of sinks, as in recipes. Training that diverges raises
    `Diverged`.

    `test_split` are the test samples of each client, on which its own model is measured, or "alike"
    for a share of `test` like its training samples: the default where parameters are `local`, since
    then nobody has the averaged model.

    `out` is a run folder like those of the command line, with checkpoints and a report; with
    `resume` what is there goes on, to the same numbers. `stop` is asked after every row whether to
    end early, for example `Patience("accuracy", 5)`. `best` names a metric: the averaged model with
    its best value is kept in `out`, as best.pt.
    """
    check_simulation(simulation)
    check_kind("name", name, str, "a text")
    if simulation.workers.step >= check_whole("until =", until, 0) and not out:
        return Table([], name)
    session = SimulationRun(
        simulation,
        until,
        test=test,
        test_split=test_split,
        every=every,
        metrics=metrics,
        sinks=sinks,
        out=out,
        resume=resume,
        force=force,
        stop=stop,
        best=best,
        checkpoint_every=checkpoint_every,
    )
    if not session.finished:
        with shown_here() as display:
            train_shown(session, name, display)
    if out:
        write_page(RunFolder(Path(out)).report_path, gather([Path(out)]))
    return Table(session.rows, name)


def compare(
    simulation: Callable[[Any, int], Simulation],
    until: int,
    *,
    schemes: Mapping[str, Any] | None = None,
    interval: int | None = None,
    seeds: int | Sequence[int] = 1,
    test: Any = None,
    test_split: TestSplit = None,
    every: int = 10,
    metrics: Asked = (),
    sinks: Sequence[SinkLike] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    stop: Stop | None = None,
    best: str = "",
) -> Comparison:
    """Train under several schemes and seeds, and compare them: in run folders, with a report.

    `simulation(scheme, seed)` makes each of them. `schemes` are names and what the function gets
    for them: schedules, or anything else that you compare, like solvers. `interval=8` stands for
    the usual three: periodic, partial and synchronous averaging. The rest is as for `follow`.
    """
    chosen = named_schemes(schemes, interval)
    numbers = seed_numbers(seeds)
    if problem := mismatch(simulation, None, 0):
        raise ValueError(
            f"{shown(simulation)} is no function of a scheme and a seed that makes a simulation: "
            f"{problem}"
        )
    if resume and out is None:
        raise ValueError("resume=True goes on with runs in a folder: give out, their folder")
    path = Path(out) if out is not None else next_folder("compare")
    entries = [
        StartedRun(name, seed, RunFolder(path / f"{name}-seed{seed}"))
        for seed in numbers
        for name in chosen
    ]
    with in_python():
        for entry in entries:
            entry.folder.check_free(resume=resume, force=force)
        check_page(path / "report.html", force=force)
        check_no_sweep(path)
    starts = Starts()
    diverged: dict[str, str] = {}

    def train(entry: StartedRun, display: Display) -> None:
        made = simulation(chosen[entry.scheme], entry.seed)
        starts.check(entry, made)
        session = SimulationRun(
            made,
            until,
            test=test,
            test_split=test_split,
            every=every,
            metrics=metrics,
            sinks=sinks,
            out=entry.folder.path,
            resume=resume,
            force=force,
            stop=stop,
            best=best,
        )
        label = f"{entry.scheme} seed {entry.seed}" if len(numbers) > 1 else entry.scheme
        if session.finished:
            return
        try:
            train_shown(session, label, display, group=path.resolve().name)
        except Diverged as error:
            display.say(f"{label} diverged")
            diverged[label] = str(error)

    with shown_here() as display:
        for entry in entries:
            train(entry, display)  # what it made is let go of before the next is made
    report = write_page(path / "report.html", gather([path]))  # with the runs of before
    return Comparison(path, entries, report, diverged)


def run(
    recipe: str | Path,
    *,
    scheme: str | None = None,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    sinks: Sequence[SinkLike] = (),
) -> Results:
    """Train what a recipe describes, as `partavg run` does, and read what it left.

    `set={"averaging.interval": 8}` changes settings, `data` is the folder of datasets.
    """
    places = sinks_of(sinks)
    if not isinstance(recipe, str | Path):
        raise ValueError(f"recipe {shown(recipe)} is none: give a file, a folder or a name")
    if not isinstance(set, Mapping | None):
        raise ValueError(f"set = {shown(set)} is no dict: write {{'averaging.interval': 8}}")
    if not isinstance(data, str | Path | None):
        raise ValueError(f"data {shown(data)} is no folder: give the one that holds the datasets")
    if scheme is not None:
        comparison.check_scheme_name(scheme)
    found = load(recipe, [assignment(key, value) for key, value in (set or {}).items()])
    config = comparison.chosen(found, scheme)
    folder = RunFolder(Path(out) if out else next_folder(found.name.rpartition("/")[2]))
    samples = create("data", config.data, root(Path(data) if data else None))
    with in_python():
        session = Run(config, samples, folder, resume=resume, force=force)
    with shown_here() as display:
        train_shown(session, found.name, display, places)
    write_page(folder.report_path, gather([folder.path]))
    return load_run(folder.path)


def seed_numbers(given: Any) -> list[int]:
    """The seeds to train with: so many from 0, or those given."""
    if not isinstance(given, list | tuple | range | np.ndarray):
        if check_whole("seeds =", given, 1) > _MOST_SEEDS:
            raise ValueError(f"seeds = {shown(given)} are too many: use {_MOST_SEEDS} or fewer")
        given = range(given)
    found = [check_whole("seed", seed, 0) for seed in given]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"seeds = {given!r} gives no run, or one twice: use 1 or more, each once")
    return found


def named_schemes(given: Mapping[str, Any] | None, interval: int | None) -> dict[str, Any]:
    """What is compared, by name."""
    if (given is None) == (interval is None):
        raise ValueError(
            "a comparison needs schemes, a dict of names and what your function gets for them, or "
            "interval for the usual three: give one of the two"
        )
    if interval is not None:
        return {
            "periodic": Schedule.periodic(interval),
            "partial": Schedule.partial(interval),
            "synchronous": Schedule.synchronous(),
        }
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            f"schemes = {given!r} is no dict of names and what your function gets for them, like "
            f"{{'partial': partavg.Schedule.partial(8)}}: give one"
        )
    for name in given:
        comparison.check_scheme_name(name)
    return dict(given)


def train_shown(
    session: Session,
    label: str,
    display: Display,
    sinks: Sequence[Sink] = (),
    group: str = "",
    *,
    until: int | None = None,
) -> None:
    """Train to the end, or to a step; an interrupt saves first, where there is a folder."""
    try:
        with stop_request() as request:
            train_session(session, label, [display, *sinks], request, group, until=until)
    except Stopped:
        interrupt = KeyboardInterrupt(f"stopped after step {session.step}")
        raise interrupt from None
