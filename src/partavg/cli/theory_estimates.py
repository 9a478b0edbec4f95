"""Training to where the constants of `partavg theory` are measured, and measuring them."""

import click
import torch
from rich.console import Console

from partavg import build
from partavg.backends.checks import placed
from partavg.backends.client_weights import client_weights
from partavg.backends.simulate import Simulation
from partavg.cli import output
from partavg.config import Config
from partavg.data.dataset import Dataset
from partavg.data.ownership import Split
from partavg.sinks.progress import display
from partavg.sinks.sink import RunInfo
from partavg.theory import Estimates, Theorem, Theorem1, Theorem2, estimate


def train(simulation: Simulation, steps: int, lr: float, console: Console) -> None:
    """Take so many steps, if any; a loss that is not finite ends the command."""
    if not steps:
        return
    with display(console) as shown:
        shown.begin(RunInfo("training", steps))
        for record in simulation.train(steps):
            if not record.losses.isfinite().all():
                said = f"the loss is not finite at step {record.step}: lower training.lr = {lr}"
                output.fail(said, output.DIVERGED)
            shown.take({"step": record.step, "loss": float(simulation.mean_loss(record.losses))})


def measure(
    simulation: Simulation,
    config: Config,
    samples: Dataset,
    owned: Split,
    roughness_of: int,
    method: str,
    console: Console,
) -> Estimates:
    """Estimate the constants where the simulation stands."""
    device = build.device(config)
    with console.status("measuring") as status:

        def progress(what: str, done: int, total: int) -> None:
            status.update(f"measuring {what}: {done} of {total}")
            if not console.is_terminal and not done:
                click.echo(f"measuring {what}")

        return estimate(
            simulation.consensus(),
            build.loss(config),
            samples.train,
            owned,
            partition=simulation.partition,
            batch=config.training.batch,
            weights=torch.tensor(_weights(config, owned)),
            transform=placed(build.transform(config, samples), device),
            engine=simulation.engine.name,
            roughness_of=roughness_of,
            method=method,
            seed=config.training.seed,
            device=device,
            progress=progress,
        )


def theorem(config: Config, owned: Split, active: int) -> Theorem:
    """The one whose assumptions fit the split; of the active workers, where not all are."""
    if config.split.name == "iid":
        return Theorem1(active)
    weights = _weights(config, owned) if active == len(owned) else (1 / active,) * active
    return Theorem2(weights)


def _weights(config: Config, owned: Split) -> tuple[float, ...]:
    averaging = config.averaging
    return tuple(client_weights(averaging.weights, owned, averaging.max_weight).tolist())
