"""A run: train what a config describes, measure it, save it."""

from dataclasses import replace

import torch

from partavg import build
from partavg.backends.processes import OneProcess, Processes, check_same
from partavg.config import Config
from partavg.config_toml import dump, settings
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder
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
        resuming, config = processes.first(lambda: _found(folder, config, resume, force))
        device = build.device(config, processes)
        steps = build.steps(config, data)
        simulation = build.simulation(config, data, device, processes)
        known = build.scaled(config, data)
        options = build.metrics(config)
        meter = Meter(
            simulation,
            options,
            steps,
            train=known.train,
            test=known.test,
            test_split=build.test_split(config, data) if options.clients_every else None,
        )
        engine = simulation.engine
        execution = replace(
            config.engine,
            name=engine.name,
            chunk=engine.chunk,
            device=_plain(device, processes),
        )
        if engine.name == "fused":
            execution = replace(execution, precision=engine.precision)
        self.folder = folder
        self.config = replace(config, engine=execution)
        self.engine_reason = engine.reason
        super().__init__(
            simulation,
            steps,
            meter,
            settings=settings(self.config),
            folder=folder,
            checkpoints=config.checkpoints,
            sinks=chosen(config.metrics),
            processes=processes,
        )
        if resuming:
            self.restore()
        self.processes.first(lambda: self._write_start(resuming, data))

    def _write_start(self, resuming: bool, data: Dataset) -> None:
        about = {
            "seed": self.config.training.seed,
            "engine": f"{self.config.engine.name} ({self.engine_reason})",
            "ranks": self.processes.size,
        }
        if not resuming:
            self.folder.write_start(dump(self.config), about)
        elif not self.folder.environment_path.exists():  # killed right after the config was written
            self.folder.write_environment(about)
        if not self.folder.split_path.exists():
            self.folder.write_split(build.label_counts(self.config, data))


def _found(folder: RunFolder, config: Config, resume: bool, force: bool) -> tuple[bool, Config]:
    """Whether there is a run to resume, and the config to go by; a ValueError if neither."""
    folder.check_free(resume=resume, force=force)
    resuming = resume and folder.exists
    return resuming, folder.stored_config(config) if resuming else config


def _check_same(processes: Processes, config: Config, data: Dataset) -> None:
    """Raise a ValueError if processes were started with other recipes or other data."""
    told = processes.each(settings(config))
    for key in {key: None for one in told for key in one}:
        check_same(f"{key} =", [one.get(key) for one in told])
    check_same("training samples:", processes.each(len(data.train.targets)))


def _plain(device: torch.device, processes: Processes) -> str:
    """A device as the recipe names it: each of several ranks has a GPU of its own number."""
    return str(device) if processes.size == 1 else device.type
