"""`partavg theory`."""

from pathlib import Path

import click
import torch
from rich.console import Console
from torch.nn import functional as F

from partavg import build
from partavg import compare as comparing
from partavg import recipe as recipes
from partavg.backends.simulate import Simulation
from partavg.cli import drive, options
from partavg.cli.findings import Findings
from partavg.config import Config, create
from partavg.data.dataset import Dataset
from partavg.data.root import root
from partavg.data.split import Split
from partavg.folder import write_json
from partavg.sinks.progress import display
from partavg.sinks.sink import About
from partavg.theory import Estimates, Theorem, Theorem1, Theorem2, estimate


def theory(
    recipe: str,
    scheme: str | None,
    steps: int,
    roughness_of: int,
    method: str,
    kept: Path | None,
    overrides: tuple[str, ...],
    data: Path | None,
) -> None:
    """Say what the paper's theorems promise for a recipe."""
    console = drive.console()
    with drive.bad_input(), drive.plain_warnings():
        options.check_suffix(kept, ".json")
        found = recipes.load(recipe, overrides)
        config = comparing.chosen(found, scheme)
        full: Dataset = create("data", config.data, root(data))
        budget = build.steps(config, full)
        if not 0 <= steps < budget:
            raise ValueError(
                f"--steps {steps} leaves no step of the recipe's {budget}: use 0 to {budget - 1}"
            )
        if roughness_of < 1:
            raise ValueError(f"--workers {roughness_of} measures nothing: use 1 or more")
        simulation = build.simulation(config, full, build.device(config))
        samples = build.scaled(config, full)
        owned = build.split(config, samples)
    try:
        with drive.plain_warnings():
            _train(simulation, steps, config.training.lr, console)
            measured = _measure(simulation, config, samples, owned, roughness_of, method, console)
    except KeyboardInterrupt:
        drive.fail("stopped; nothing was written", drive.INTERRUPTED)
    rate = build.rate(config, full)
    findings = Findings(
        found.name,
        config,
        measured,
        _theorem(config, owned, len(simulation.workers.params)),
        lr=max(rate(step) for step in range(steps + 1, budget + 1)),
        interval=simulation.schedule.interval,
        begun=steps,
        steps=budget - steps,
    )
    with drive.bad_input():
        findings.show(console)
        if kept:
            write_json(kept, findings.numbers())
            click.echo(f"numbers: {kept}")


def _train(simulation: Simulation, steps: int, lr: float, console: Console) -> None:
    if not steps:
        return
    with display(console) as shown:
        shown.begin(About("training", steps))
        for record in simulation.train(steps):
            if not record.losses.isfinite().all():
                said = f"the loss is not finite at step {record.step}: lower training.lr = {lr}"
                drive.fail(said, drive.DIVERGED)
            shown.take({"step": record.step, "loss": float(simulation.mean_loss(record.losses))})


def _measure(
    simulation: Simulation,
    config: Config,
    samples: Dataset,
    owned: Split,
    roughness_of: int,
    method: str,
    console: Console,
) -> Estimates:
    device = build.device(config)
    with console.status("measuring") as status:

        def progress(what: str, done: int, total: int) -> None:
            status.update(f"measuring {what}: {done} of {total}")
            if not console.is_terminal and not done:
                click.echo(f"measuring {what}")

        return estimate(
            simulation.consensus(),
            F.cross_entropy,
            samples.train,
            owned,
            partition=simulation.partition,
            batch=config.training.batch,
            weights=torch.tensor(_weights(config, owned)),
            transform=build.transform(config, samples, device),
            engine=simulation.engine.name,
            roughness_of=roughness_of,
            method=method,
            seed=config.training.seed,
            device=device,
            progress=progress,
        )


def _theorem(config: Config, owned: Split, active: int) -> Theorem:
    """The one whose assumptions fit the split; of the active workers, where not all are."""
    if config.split.name == "iid":
        return Theorem1(active)
    weights = _weights(config, owned) if active == len(owned) else (1 / active,) * active
    return Theorem2(weights)


def _weights(config: Config, owned: Split) -> tuple[float, ...]:
    by_samples = config.averaging.weights == "samples"
    counts = [len(samples) if by_samples else 1 for samples in owned]
    return tuple(count / sum(counts) for count in counts)
