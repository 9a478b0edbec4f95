"""`partavg privacy`."""

import click

EXAMPLES = """\b
Examples:
  partavg privacy --cycles 50 --noise 1.1
  partavg privacy --cycles 50 --fraction 0.1 --epsilon 4 --clients 1000
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--cycles", required=True, type=click.IntRange(1), help="In which all parts are released once."
)
@click.option(
    "--fraction",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Of the clients, drawn by chance in every cycle.",
)
@click.option("--noise", type=click.FloatRange(0.2), help="In clips; what is ε then?")
@click.option(
    "--epsilon", type=click.FloatRange(0, min_open=True), help="How much noise does that take?"
)
@click.option(
    "--delta",
    default=1e-5,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Below 1 / clients.",
)
@click.option("--clients", type=click.IntRange(1), help="In all, to say what noise does to a mean.")
def privacy(
    cycles: int,
    fraction: float,
    noise: float | None,
    epsilon: float | None,
    delta: float,
    clients: int | None,
) -> None:
    """Say what private cycles cost together, or how much noise an ε takes.

    A cycle is an interval, in which each part of the model is averaged once: it costs as much
    whether that is in one part or in many. Counted by Google's dp-accounting; docs/privacy.md says
    what is promised.
    """
    from partavg.cli import output
    from partavg.privacy.accountant import Accountant, check_installed, noise_for

    with output.bad_input():
        if (noise is None) == (epsilon is None):
            raise ValueError("give either --noise, for the ε it makes, or --epsilon, for the noise")
        check_installed()
        if noise is None:
            assert epsilon is not None
            noise = noise_for(epsilon, cycles, fraction=fraction, delta=delta)
        spent = Accountant(noise, fraction, delta).epsilon(cycles)
    drawn = "" if fraction == 1 else f", {fraction:g} of the clients in each"
    say = output.console().print
    say(f"privacy.noise = {noise:g}: ε = {spent:.4g} at δ = {delta:g} after {cycles} cycles{drawn}")
    if clients is not None:
        each = noise / (fraction * clients)
        say(f"in every number of a mean over {fraction * clients:g} clients: {each:.3g} × the clip")
