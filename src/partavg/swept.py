"""From Python, what `partavg sweep` does: each scheme with its own best settings, then tested."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from partavg.api import named_schemes, train_shown
from partavg.backends.simulate import Simulation
from partavg.cli import output
from partavg.cli.sweep_report import Ended, announced, ended
from partavg.core.arguments import check_flag, check_kind, check_whole
from partavg.data.convert import as_samples
from partavg.data.dataset import held_out
from partavg.data.samples import Samples
from partavg.evaluation import Asked
from partavg.folder import next_folder, write_json
from partavg.metrics.table import METRICS
from partavg.notebook import Comparison, Figure, shown_here
from partavg.outputs import check_page
from partavg.registry import mismatch
from partavg.sentences import shown
from partavg.session import Diverged
from partavg.simulation_run import SimulationRun, check_goes_on, in_python
from partavg.sinks.progress import Display
from partavg.starts import Engines, Starts
from partavg.sweeps.place import ENGINES, check_free, clear
from partavg.sweeps.plan import Sweep
from partavg.sweeps.runner import Clock, Sweeping, Task
from partavg.sweeps.search import Halving, Listed, Search
from partavg.sweeps.space import Axis, Point


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: print it, or let a notebook show it."""

    path: Path
    """The folder of all runs."""
    tests: Comparison
    """The best settings of each scheme on the test set, with fresh seeds."""
    _ended: Ended = field(repr=False)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The best settings of each scheme; one that only diverged has none."""
        return {one.scheme: dict(one.chosen.trial.point) for one in self._ended.tuned if one.chosen}

    @property
    def tried(self) -> list[dict[str, Any]]:
        """All settings that were tried, and what each reached on validation samples."""
        return [
            {
                "scheme": one.scheme,
                **dict(tried.trial.point),
                "step": None if tried.outcome.diverged else tried.outcome.step,
                one.metric.key if one.metric else "value": tried.outcome.value,
                "chosen": one.chosen is not None and tried.trial == one.chosen.trial,
            }
            for one in self._ended.tuned
            for tried in one.tried
        ]

    @property
    def said(self) -> list[str]:
        """What was chosen, what came of it, and what is to be doubted, in sentences."""
        return list(self._ended.said)

    def __repr__(self) -> str:
        console = Console(width=output.width(), force_terminal=False)
        with console.capture() as shown_text:
            for table in self._ended.tables:
                console.print(table)
        return "\n".join([shown_text.get().rstrip(), *self._ended.lines])

    def _repr_html_(self) -> str:
        tables = "".join(
            f"<table><tr>{_cells('th', table.head)}</tr>"
            + "".join(f"<tr>{_cells('td', row)}</tr>" for row in table.rows)
            + "</table>"
            for table in self._ended.tables
        )
        lines = "".join(f"<p>{escape(line)}</p>" for line in self._ended.lines)
        return Figure(f"<div>{tables}</div>{lines}")._repr_html_()


def sweep(
    simulation: Callable[..., Simulation],
    until: int,
    *,
    grid: Mapping[str, Any],
    train: Any,
    test: Any,
    schemes: Mapping[str, Any] | None = None,
    interval: int | None = None,
    seeds: int = 3,
    tune_seeds: int = 1,
    validation: Any = 0.1,
    budget: int | None = None,
    search: str = "listed",
    sampler: str = "tpe",
    every: int = 10,
    metrics: Asked = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
) -> Swept:
    """Give each scheme its own best settings, chosen on validation samples, and test these.

    `simulation(scheme, seed, samples, lr=…)` makes each simulation, to train on the `samples` that
    it is given. `grid` has values for each of its settings, `{"lr": [0.1, 0.2]}`, or a text,
    `"loguniform(0.01, 1)"`. Of the training samples a share of `validation` is held out to choose
    on, or `validation` are samples of their own; the best settings are trained on all of `train`
    with `seeds` fresh seeds and judged on `test`. The rest is as for `compare` and in
    docs/sweep.md.
    """
    chosen = named_schemes(schemes, interval)
    until, every = check_whole("until =", until, 1), check_whole("every =", every, 1)
    check_kind("search", search, str, "the name of one")
    check_kind("sampler", sampler, str, "the name of one")
    check_flag("resume", resume)
    check_flag("force", force)
    if resume and out is None:
        raise ValueError("resume=True goes on with runs in a folder: give out, their folder")
    everything = as_samples(train)
    samples, held = _held(everything, validation)
    judged = samples, everything, held, as_samples(test)
    path = Path(out) if out is not None else next_folder("sweep")
    with in_python():
        planned = Sweep(
            name="partavg.sweep",
            schemes=tuple(chosen),
            axes=_axes(grid),
            seeds=check_whole("seeds =", seeds, 1),
            tune_seeds=check_whole("tune_seeds =", tune_seeds, 1),
            out=path,
            budget=None if budget is None else check_whole("budget =", budget, 1),
            search=search,
            sampler=sampler,
            about={"until": until, "every": every, "validation": held.size},
        )
        planned.check()
        settings = {axis.key: (axis.ends or axis.values)[0] for axis in planned.axes}
        if problem := mismatch(simulation, None, 0, samples, **settings):
            raise ValueError(
                f"{shown(simulation)} is no function of a scheme, a seed, samples and "
                f"{', '.join(settings)} that makes a simulation: {problem}"
            )
        check_page(path / "report.html", force=force or resume)
        check_free(planned, resume=resume, force=force)
        sweeping = Sweeping(planned, _search(planned, until, every))
    known = {} if force else _engines(planned.out / ENGINES)
    with shown_here() as display:
        trains = _Trains(planned, simulation, chosen, until, every, metrics, judged, display, known)
        if planned.begun and not force:
            _check_unchanged(sweeping, trains)
        else:
            _try_out(planned, settings, trains)
        if planned.begun and force:
            clear(planned)
        planned.write()
        clock = Clock(sweeping)
        display.say(str(clock))
        sweeping.work(trains, announced(sweeping, display, clock))
    found = ended(sweeping)
    entries = [entry for scheme in planned.schemes for entry in sweeping.tests(scheme)]
    lost = {f"{one.scheme} seed {one.seed}": one.folder.why_diverged() for one in entries}
    return Swept(
        path,
        Comparison(path, entries, found.page, {name: why for name, why in lost.items() if why}),
        found,
    )


class _Trains:
    """Trains the tasks of a sweep: makes the simulation of each, all with one engine."""

    def __init__(
        self,
        planned: Sweep,
        simulation: Callable[..., Simulation],
        schemes: Mapping[str, Any],
        until: int,
        every: int,
        metrics: Asked,
        judged: tuple[Samples, Samples, Samples, Samples],
        display: Display,
        engines: Engines,
    ) -> None:
        self._simulation, self._schemes, self._until = simulation, schemes, until
        self._every, self._metrics, self._display = every, metrics, display
        self._some, self._all, self._held, self._test = judged
        self._file = planned.out / ENGINES
        self._engines = engines
        self._starts: dict[tuple[Point, bool], Starts] = {}

    def __call__(self, task: Task) -> None:
        """Train a task from where it was left."""
        session = self.session(task)
        with suppress(Diverged):  # its folder says so
            train_shown(session, task.label, self._display, group="sweep", until=task.until)

    def session(self, task: Task, *, kept: bool = True) -> SimulationRun:
        """A task as it is to be trained; a ValueError if its folder holds another run.

        What is not `kept` leaves nothing behind.
        """
        entry, made, judged = task.entry, self._made(task), self._judged(task)
        if kept:
            write_json(self._file, self._engines)
        else:
            made.evaluate(as_samples(judged.some(slice(2)), dtype=made.workers.params.dtype))
        return SimulationRun(
            made,
            self._until,
            test=judged,
            every=self._every,
            metrics=self._metrics,
            out=entry.folder.path if kept else None,
            resume=kept and entry.folder.exists,
            judged_on="test" if task.tests else "validation",
        )

    def check(self, task: Task) -> None:
        """Raise a ValueError if a run that is there is of another simulation than one made now."""
        made, folder = self._made(task), task.entry.folder
        check_goes_on(folder, made, as_samples(self._judged(task), dtype=made.workers.params.dtype))
        asked = folder.metrics(), METRICS.asked(self._metrics)
        then, now = (", ".join(one.key for one in some) or "the usual metrics" for some in asked)
        if then != now and folder.metrics_path.exists():
            raise ValueError(
                f"{folder.path} was measured by {then}, and others would be by {now}: settings are "
                f"compared by these, so give metrics as they were, or use another out"
            )

    def _made(self, task: Task) -> Simulation:
        """The simulation of a task, before its first step."""
        entry, samples = task.entry, self._all if task.tests else self._some
        settings = dict(task.point)
        made = self._simulation(self._schemes[entry.scheme], entry.seed, samples, **settings)
        starts = self._starts.setdefault((task.point, task.tests), Starts(self._engines))
        starts.check(entry, made)
        if made.samples.size != samples.size:
            raise ValueError(
                f"the simulation trains on {made.samples.size} samples, and the function was given "
                f"{samples.size}: train on those, or settings are chosen on what was trained on"
            )
        return made

    def _judged(self, task: Task) -> Samples:
        """What a task is measured on."""
        return self._test if task.tests else self._held


def _held(train: Samples, validation: Any) -> tuple[Samples, Samples]:
    """What settings are trained on, and what they are judged on."""
    if isinstance(validation, bool) or not isinstance(validation, int | float):
        return train, as_samples(validation)
    kept, judged = held_out(train.size, validation)
    return train.some(kept), train.some(judged)


def _axes(grid: Any) -> tuple[Axis, ...]:
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(
            f"grid = {shown(grid)} is no dict of settings and their values: give one like "
            f"{{'lr': [0.1, 0.2]}}"
        )
    return tuple(_axis(key, values) for key, values in grid.items())


def _axis(key: Any, values: Any) -> Axis:
    if not isinstance(key, str) or not re.fullmatch(r"[^\W\d]\w*", key):
        raise ValueError(f"setting {shown(key)} is no name of an argument: use one like lr")
    if isinstance(values, str):
        return Axis.parse(f"{key}={values}")
    if isinstance(values, Mapping) or not hasattr(values, "__iter__"):
        raise ValueError(
            f"grid has {key} = {shown(values)}: list some values, like [0.1, 0.2], or give "
            f"'loguniform(0.01, 1)'"
        )
    return Axis.listed(key, list(values))


def _try_out(planned: Sweep, settings: Mapping[str, Any], trains: _Trains) -> None:
    """Raise a ValueError for a simulation, samples, metrics or a value that will not do.

    It is said before anything is written or removed, and not when the first test begins.
    """
    point = tuple(settings.items())
    for axis in planned.axes:
        for value in (axis.ends or axis.values)[1:]:
            other = tuple({**settings, axis.key: value}.items())
            task = Task(planned.trial(planned.schemes[0], 0, other)[0], other)
            trains.session(task, kept=False)
    for scheme in planned.schemes:
        trains.session(Task(planned.trial(scheme, 0, point)[0], point), kept=False)
    trains.session(Task(planned.tests(planned.schemes[0])[0], point, tests=True), kept=False)


def _check_unchanged(sweeping: Sweeping, trains: _Trains) -> None:
    """Raise a ValueError if the function makes other simulations than those of the runs there.

    It is asked for all of them again, which takes as long as they took to begin.
    """
    for task in sweeping.begun():
        trains.check(task)


def _search(planned: Sweep, until: int, every: int) -> Search:
    if planned.search == "optuna":
        from partavg.sweeps.optuna_search import OptunaSearch

        return OptunaSearch(planned)
    return Listed(planned) if planned.search == "listed" else Halving(planned, until, every)


def _engines(file: Path) -> Engines:
    """Those that were chosen before, so that what goes on computes as it did."""
    if not file.exists():
        return {}
    stored = json.loads(file.read_text(encoding="utf-8"))
    return {kind: (name, chunk) for kind, (name, chunk) in stored.items()}


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
