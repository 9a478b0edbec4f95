"""`partavg flower`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  partavg flower new fashion
  partavg flower simulate fashion
  partavg flower node 127.0.0.1:9092 --client 0 --state state0 --key node0 --ca ca.crt
  partavg flower clean state0 --dry-run
"""
NEW = """\b
Examples:
  partavg flower new fashion
"""
SIMULATE = """\b
Examples:
  partavg flower simulate fashion
  partavg flower simulate fashion --set training.steps=40 --set flower.folder=runs/short
"""
NODE = """\b
Examples:
  partavg flower node 127.0.0.1:9092 --client 0 --state state0 --key node0 --ca ca.crt
  partavg flower node example.org:443 --client 3 --state state --key key --ca ca.crt --device cuda
"""
CLEAN = """\b
Examples:
  partavg flower clean state0 --dry-run
  partavg flower clean state0 --older-than 7d
  partavg flower clean state0 --job fashion --force
"""


@click.group(epilog=EXAMPLES)
def flower() -> None:
    """Train with real clients over a real network, by Flower (see docs/flower.md)."""


@flower.command(epilog=NEW)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def new(folder: Path) -> None:
    """Write a Flower app into DIR: federated Fashion-MNIST, to run as it is and to edit."""
    with _with_flower():
        from partavg.flower.new import write_app

        for path in write_app(folder):
            click.echo(f"wrote {path}")
    click.echo(f"edit them, then: partavg flower simulate {folder}")


@flower.command(epilog=SIMULATE)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--set", "changes", metavar="KEY=VALUE", multiple=True, help="Change a setting.")
def simulate(folder: Path, changes: tuple[str, ...]) -> None:
    """Train the app in DIR on this machine, in Flower's simulation runtime (needs Ray)."""
    with _with_flower():
        from partavg.flower.simulation import simulate

        run = simulate(folder, changes)
        click.echo(f"done: partavg report {run.path}")


@flower.command(epilog=NODE)
@click.argument("superlink", metavar="HOST:PORT")
@click.option("--client", type=click.IntRange(min=0), required=True, help="The client's number.")
@click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), required=True,
    help="A folder of this node, where the client's model is kept.",
)  # fmt: skip
@click.option(
    "--key", type=click.Path(dir_okay=False, path_type=Path),
    help="The node's private key: Flower knows it by that, and what it says is signed.",
)  # fmt: skip
@click.option(
    "--ca", type=click.Path(dir_okay=False, path_type=Path),
    help="The certificate of the authority that signed the server's.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Without TLS, for tries on one machine.")
@click.option("--device", default="cpu", show_default=True, help="Where to compute.")
@click.option("--config", default="", help="More for --node-config, for your own data(context).")
@click.option(
    "--patience", type=click.FloatRange(min=0), default=90.0, show_default=True,
    help="Seconds to try again while the node cannot join.",
)  # fmt: skip
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def node(
    superlink: str,
    client: int,
    state: Path,
    key: Path | None,
    ca: Path | None,
    insecure: bool,
    device: str,
    config: str,
    patience: float,
    more: tuple[str, ...],
) -> None:
    """Be a node of a federation: a SuperNode whose clients start from a warm process.

    It goes on until it is told to end. Words after -- go to flower-supernode as they are.
    """
    with _with_flower():
        if insecure == (ca is not None):
            raise ValueError("give --ca FILE, or --insecure for tries on one machine")
        from partavg.flower.node import Node

        made = Node(superlink, client, state, key, ca, device, config, patience)
        raise SystemExit(made.run(more))


@flower.command(epilog=CLEAN)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--job", default="", help="Of this job only.")
@click.option("--older-than", metavar="TIME", default="0min", help="Not used for so long: 7d, 12h.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and leave it.")
@click.option("--force", is_flag=True, help="Unfinished runs, too: their clients lose their state.")
def clean(folder: Path, job: str, older_than: str, dry_run: bool, force: bool) -> None:
    """Free what clients keep in DIR, a node's state-dir, of runs that are over."""
    with _with_flower():
        from partavg.cli.units import age
        from partavg.data.memory import readable
        from partavg.flower import state_folders

        every = state_folders.kept_in(folder, job)
        going = state_folders.may_go(every, older_than=age(older_than), force=force)
        freed, busy = 0, []
        for one in going:
            if not dry_run and not state_folders.remove(one):
                busy.append(one)
                continue
            freed += one.bytes
            said = "would remove" if dry_run else "removed"
            click.echo(f"{said} {one.called} ({one.state}): {readable(one.bytes)}")
        click.echo(f"{'would free' if dry_run else 'freed'} {readable(freed)}")
        for one in busy:
            click.echo(f"left {one.called}: a process is using it")
        for one in every:
            if one not in going:
                remedy = "" if one.state == "finished" else "; --force removes it"
                click.echo(f"left {one.called} ({one.state}): {readable(one.bytes)}{remedy}")


@contextmanager
def _with_flower() -> Iterator[None]:
    """Say in a sentence what is wrong, that Flower is not installed, too."""
    from partavg.cli import output

    with output.bad_input():
        try:
            yield
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None
