"""`partavg theory`."""

from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg theory
  partavg theory --steps 100 --set averaging.interval=4
  partavg theory recipe.toml --scheme periodic --json theory.json
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@options.scheme
@click.option("--steps", default=0, show_default=True, help="Train so many steps before measuring.")
@click.option(
    "--workers",
    "roughness_of",
    default=4,
    show_default=True,
    help="Measure the smoothness of so many workers' losses; it takes the longest.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "hessian", "difference"]),
    default="auto",
    show_default=True,
    help="Measure smoothness by the Hessian, or by differences of gradients, which see kinks too.",
)
@click.option(
    "--json",
    "kept",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all numbers, those of every part too, to this file.",
)
@options.overwrite
@options.settings
@options.data
def theory(
    recipe: str,
    scheme: str | None,
    steps: int,
    roughness_of: int,
    method: str,
    kept: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    data: Path | None,
) -> None:
    """Say what the paper's theorems promise for RECIPE, and whether its learning rate is allowed.

    Smoothness, gradient noise and the difference between workers are measured where training
    starts, or after some steps. From them come the largest learning rate that the theorem for IID
    or non-IID data allows, the terms of its bound, and the longest interval at this learning rate.
    """
    from partavg import build
    from partavg import comparison as comparing
    from partavg import recipe as recipes
    from partavg.cli import output, theory_estimates
    from partavg.cli.theory_report import Findings
    from partavg.config import create
    from partavg.data.root import root
    from partavg.folder import write_json

    console = output.console()
    with output.bad_input(), output.plain_warnings():
        options.check_file(kept, ".json", force=force)
        found = recipes.load(recipe, overrides)
        config = comparing.chosen(found, scheme)
        if config.averaging.local:
            raise ValueError(
                "averaging.local keeps parameters that are never averaged, and the theorems' "
                "proofs do not cover them: ask without, by --set averaging.local=[]"
            )
        if build.privacy(config):
            raise ValueError(
                "privacy clips and adds noise, and the theorems' proofs do not cover it: ask for a "
                "recipe without"
            )
        full = create("data", config.data, root(data))
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
        with output.plain_warnings():
            theory_estimates.train(simulation, steps, config.training.lr, console)
            measured = theory_estimates.measure(
                simulation, config, samples, owned, roughness_of, method, console
            )
    except KeyboardInterrupt:
        output.fail("stopped; nothing was written", output.INTERRUPTED)
    rate = build.rate(config, full)
    findings = Findings(
        found.name,
        config,
        measured,
        theory_estimates.theorem(config, owned, len(simulation.workers.params)),
        lr=max(rate(step) for step in range(steps + 1, budget + 1)),
        interval=simulation.schedule.interval,
        begun=steps,
        steps=budget - steps,
    )
    with output.bad_input():
        findings.show(console)
        if kept:
            write_json(kept, findings.numbers())
            click.echo(f"numbers: {kept}")
