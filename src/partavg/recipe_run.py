"""A run: train what a config describes, measure it, save it."""

import warnings
from dataclasses import replace

import torch

from partavg import budget, build
from partavg.backends.processes import OneProcess, Processes, check_same
from partavg.backends.simulate import Simulation
from partavg.config import Config, Execution
from partavg.config_toml import dump, settings, to_tables
from partavg.data.dataset import Dataset
from partavg.folder import DATA, RunFolder
from partavg.kept_code import digests
from partavg.metrics.meter import Meter
from partavg.session import Session
from partavg.sinks import chosen


class Run(Session):
    """One training run in its folder; iterate over it to train.

    Building it checks everything that can be checked before work starts. Of several
    `processes` all train; only the first one reads and writes the folder.
    """

    def __init__(
        self,
        config: Config,
        data: Dataset,
        folder: RunFolder,
        *,
        resume: bool,
        force: bool,
        processes: Processes | None = None,
    ) -> None:
        processes = processes or OneProcess()
        _check_same(processes, config, data)
        resuming, goes_on, config = processes.first(
            lambda: _found(folder, config, data, resume=resume, force=force)
        )
        device = build.device(config, processes)
        steps = build.steps(config, data)
        simulation = build.simulation(config, data, device, processes)
        meter = meter_of(config, data, simulation)
        _check_best(config)
        self.folder = folder
        self.config = replace(config, engine=execution(config, simulation, device, processes))
        self.engine_reason = simulation.engine.reason
        super().__init__(
            simulation,
            steps,
            meter,
            settings=settings(self.config),
            folder=folder,
            checkpoints=config.checkpoints,
            sinks=chosen(config.metrics),
            processes=processes,
            judged_on="validation" if config.training.validation else "test",
        )
        if resuming:
            self.restore()
        self.processes.first(lambda: self._write_start(resuming, goes_on, data))

    def _write_start(self, resuming: bool, goes_on: bool, data: Dataset) -> None:
        if not resuming:
            about = {
                "seed": self.config.training.seed,
                "engine": f"{self.config.engine.name} ({self.engine_reason})",
                "ranks": self.processes.size,
                DATA: data.fingerprints,
            }
            self.folder.write_start(dump(self.config), about)
        if goes_on:
            self.folder.reopen(dump(self.config), self.step)
        if not self.folder.shown_path.exists():
            self.folder.write_metrics(self._meter.asked)
        if not self.folder.split_path.exists():
            self.folder.write_split(build.label_counts(self.config, data))


def meter_of(config: Config, data: Dataset, simulation: Simulation) -> Meter:
    """What measures a simulation of a config; a ValueError if something cannot be measured."""
    known, options = build.scaled(config, data), build.metrics(config)
    return Meter(
        simulation,
        options,
        simulation.affordable(build.steps(config, data)),
        train=known.train,
        test=known.test,
        test_split=build.test_split(config, data) if options.clients_every else None,
        bytes_per_token=known.bytes_per_token,
    )


def _check_best(config: Config) -> None:
    """Warn of a best model that is chosen by the samples it is tested on."""
    if config.checkpoints.best and not config.training.validation:
        warnings.warn(
            f"checkpoints.best = {config.checkpoints.best!r} is chosen on the test set, so that "
            f"its number is too good: set training.validation=0.1 to choose on training samples "
            f"that are held out",
            stacklevel=3,
        )


def _found(
    folder: RunFolder, config: Config, data: Dataset, *, resume: bool, force: bool
) -> tuple[bool, bool, Config]:
    """Whether there is a run to resume, whether with a larger budget, and the config to go by."""
    folder.check_free(resume=resume, force=force)
    if not (resume and folder.exists):
        return False, False, config
    stored = folder.stored_config(config)
    folder.check_data(data.fingerprints)
    longer = budget.larger(folder, stored, config, data)
    return True, longer is not None, longer or stored


def _check_same(processes: Processes, config: Config, data: Dataset) -> None:
    """Raise a ValueError if processes were started with other recipes, other code or other data."""
    told = processes.each({**settings(config), **digests(to_tables(config))})
    for key in {key: None for one in told for key in one}:
        check_same(f"{key} =", [one.get(key) for one in told])
    check_same("training samples:", processes.each(data.train.size))


def execution(
    config: Config, simulation: Simulation, device: torch.device, processes: Processes
) -> Execution:
    """How a simulation computes, with nothing left to be chosen."""
    engine = simulation.engine
    known = replace(
        config.engine, name=engine.name, chunk=engine.chunk, device=_plain(device, processes)
    )
    return replace(known, precision=engine.precision) if engine.name == "fused" else known


def _plain(device: torch.device, processes: Processes) -> str:
    """A device as the recipe names it: each of several ranks has a GPU of its own number."""
    return str(device) if processes.size == 1 else device.type
