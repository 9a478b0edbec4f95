"""A run of a simulation made in Python: in a folder, if one is given, like that of a recipe."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from partavg.backends.description import Sections, flat
from partavg.backends.simulate import Simulation
from partavg.best import Patience
from partavg.config import Checkpoints, Metrics
from partavg.config_toml import dump_sections, flat_keys
from partavg.core.arguments import check_flag, check_kind, check_whole
from partavg.data.convert import as_samples
from partavg.data.fingerprint import short_fingerprint
from partavg.data.ownership import Split, checked_split, class_counts
from partavg.data.samples import Samples
from partavg.data.test_split import split_alike
from partavg.engines.choice import Choice
from partavg.evaluation import Asked
from partavg.folder import DATA, MADE_BY, RunFolder
from partavg.metrics.meter import Meter
from partavg.metrics.metric import Metric, Row
from partavg.metrics.table import METRICS
from partavg.registry import mismatch
from partavg.sentences import shown
from partavg.session import Session, Stop
from partavg.sinks import sinks_of
from partavg.sinks.sink import SinkLike

TestSplit = Sequence[Any] | Literal["alike"] | None
"""The test samples of each client; "alike" deals them like its training samples."""

_FREE = ("engine.", "metrics.", "checkpoints.", f"{MADE_BY}.")
"""What may change when a run goes on."""

_DIGESTS = {
    "data.sha256": "other training samples",
    "split.sha256": "another split of samples",
    "model.sha256": "other parameters of the model",
}
"""What differs where a digest does."""


class SimulationRun(Session):
    """Trains a simulation up to step `until`; with `out` it is a run folder.

    Building it checks all that can be checked, and restores what `out` holds of it.
    """

    _rate = "lr"

    def __init__(
        self,
        simulation: Simulation,
        until: int,
        *,
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
        checkpoint_every: int = 100,
        judged_on: str = "test",
    ) -> None:
        check_simulation(simulation)
        until, every = check_whole("until =", until, 1), check_whole("every =", every, 1)
        checkpoint_every = check_whole("checkpoint_every =", checkpoint_every, 0)
        check_flag("resume", resume)
        check_flag("force", force)
        check_kind("best", best, str, "the name of a metric")
        if stop is not None and (isinstance(stop, type) or mismatch(stop, {})):
            raise ValueError(
                f"stop = {shown(stop)} is no function of a row: give one that says whether to "
                f"stop, or partavg.Patience"
            )
        asked = METRICS.asked(metrics)
        for name in (best, stop.metric if isinstance(stop, Patience) else ""):
            if name in METRICS and METRICS[name].sums and name not in (one.key for one in asked):
                asked += METRICS.asked([name])
        places = sinks_of(sinks)
        folder = _folder(out, resume=resume, best=best)
        self.finished = False
        """Whether it was finished before, so that nothing is left to train."""
        dtype = simulation.workers.params.dtype
        known = None if test is None else as_samples(test, dtype=dtype)
        dealt = _dealt(simulation, known, test_split)
        every_row = 0 if dealt is None else 1
        options = Metrics(evaluate_every=1, discrepancy_every=1, clients_every=every_row)
        checkpoints = Checkpoints(every=checkpoint_every if folder else 0, best=best)
        resuming = False
        if folder:
            with in_python():
                folder.check_free(resume=resume, force=force)
            resuming = resume and folder.exists
            if resuming:
                check_goes_on(folder, simulation, known)
                simulation.use(_stored_engine(folder, simulation.engine))
        if folder and not resuming and simulation.workers.step >= until:
            raise ValueError(
                f"the simulation has taken {simulation.workers.step} steps already, and until = "
                f"{until}: make a new one for each run, or train for longer"
            )
        sections = _sections(simulation, until, every, asked, checkpoints)
        train = simulation.samples if folder else None
        super().__init__(
            simulation,
            until,
            Meter(
                simulation,
                options,
                simulation.affordable(until),
                train=train,
                test=known,
                test_split=dealt,
                asked=asked,
            ),
            settings=flat(sections),
            folder=folder,
            checkpoints=checkpoints,
            sinks=places,
            every=every,
            stop=deepcopy(stop),  # which may remember what it saw of another run
            judged_on=judged_on,
        )
        if folder and resuming:
            self._go_on(folder, sections)
        elif folder:
            about = _environment(simulation) | {DATA: _fingerprints(known)}
            folder.write_start(dump_sections(sections), about)
            folder.write_metrics(asked)
            folder.write_split(class_counts(simulation.samples, simulation.split))

    @property
    def rows(self) -> list[Row]:
        """All rows measured so far, those of before a resume included."""
        return list(self._folder.rows()) if self._folder else self._all

    def _go_on(self, folder: RunFolder, sections: Sections) -> None:
        """Restore what the folder holds of the same simulation."""
        steps = flat_keys(folder.config_path.read_text(encoding="utf-8")).get("training.steps", 0)
        if self._wanted < steps:
            raise ValueError(
                f"{folder.path} was started for {steps} steps, and until = {self._wanted} is less: "
                f"use {steps} or more"
            )
        with in_python():
            self.restore()
            self.finished = folder.finished and self._wanted == steps
            if self._wanted > steps:
                folder.reopen(dump_sections(sections), self.step)


def check_goes_on(folder: RunFolder, simulation: Simulation, test: Samples | None) -> None:
    """Raise a ValueError if a folder holds a run of another simulation, or judged on other samples.

    Its budget may be another one.
    """
    stored = flat_keys(folder.config_path.read_text(encoding="utf-8"))
    wanted = flat_keys(dump_sections(simulation.settings))
    for key in {**stored, **wanted}:
        same = stored.get(key) == wanted.get(key) or key.startswith(_FREE)
        if same or key == "training.steps":
            continue
        if key in _DIGESTS:
            raise ValueError(
                f"{folder.path} was started with {_DIGESTS[key]} than this simulation has ({key}): "
                f"make it as it was, or use another out"
            )
        raise ValueError(
            f"{folder.path} was started with {key} = {stored.get(key)!r}, and this "
            f"simulation has {wanted.get(key)!r}: make it as it was, or use another out"
        )
    with in_python():
        folder.check_data(_fingerprints(test))


def _fingerprints(test: Samples | None) -> dict[str, str]:
    """Of what a run is judged on; config.toml has that of what it trains on."""
    return {} if test is None else {"test": short_fingerprint(test.tensors)}


def check_simulation(given: object) -> None:
    """Raise a ValueError for what is no simulation."""
    if not isinstance(given, Simulation):
        raise ValueError(f"{shown(given)} is no simulation: give a partavg.Simulation")


def _dealt(simulation: Simulation, test: Samples | None, given: TestSplit) -> Split | None:
    """The test samples of each client, where clients are measured."""
    if given is None and not (simulation.local and test and not simulation.spending):
        return None
    if simulation.spending and simulation.local:
        raise ValueError(
            "test_split shows what clients' own models can do, which privacy does not protect: "
            "leave it out"
        )
    if test is None:
        raise ValueError("test_split needs samples to deal: give test, too")
    if isinstance(given, str) and given != "alike":
        raise ValueError(
            f"test_split = {given!r} is not known: use alike, or the indices of each client's "
            f"samples"
        )
    if given is None or isinstance(given, str):
        return split_alike(simulation.samples.classes, simulation.split, test.classes)
    clients = len(simulation.split)
    return checked_split(given, test.size, clients, "test_split", may_be_empty=True)


@contextmanager
def in_python() -> Iterator[None]:
    """What the command line calls --resume is resume=True here."""
    try:
        yield
    except ValueError as error:
        said = re.sub(r"--(resume|force)\b", r"\1=True", str(error)).replace("--out", "out")
        said = re.sub(r"--(grid|budget)\b", r"\1", said).replace("tune-seeds", "tune_seeds")
        raise ValueError(said) from None


def _folder(out: str | Path | None, *, resume: bool, best: str) -> RunFolder | None:
    if isinstance(out, str | Path):
        return RunFolder(Path(out))
    if out is not None:
        raise ValueError(f"out = {out!r} names no folder: give a path")
    if resume:
        raise ValueError("resume=True goes on with a run in a folder: give out, its folder")
    if best:
        raise ValueError(f"best = {best!r} keeps a model in a folder: give out, its folder")
    return None


def _sections(
    simulation: Simulation,
    until: int,
    every: int,
    asked: Sequence[Metric],
    checkpoints: Checkpoints,
) -> Sections:
    """All that config.toml says of it."""
    sections = {name: dict(values) for name, values in simulation.settings.items()}
    sections["training"]["steps"] = until
    extra = {"extra": [metric.key for metric in asked]} if asked else {}
    return {
        **sections,
        "metrics": {"every": every, **extra},
        "checkpoints": asdict(checkpoints),
        MADE_BY: {"made_by": "a simulation in Python"},
    }


def _environment(simulation: Simulation) -> Row:
    engine = simulation.engine
    return {
        "seed": simulation.settings["training"]["seed"],
        "engine": f"{engine.name} ({engine.reason})",
        "ranks": 1,
    }


def _stored_engine(folder: RunFolder, chosen: Choice) -> Choice:
    """The engine of a run that goes on."""
    stored = flat_keys(folder.config_path.read_text(encoding="utf-8"))
    name, chunk = stored.get("engine.name", chosen.name), stored.get("engine.chunk", chosen.chunk)
    return chosen._replace(name=name, chunk=chunk, reason="as before")
