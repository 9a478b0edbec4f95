"""What shortens the waiting of Flower's programs in tests, on top of partavg's warm process.

    python -m tests.flower.warm FOLDER

forks servers, too, and knows the tests' app; servers wait where FOLDER/halt says.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partavg.flower import warm

SERVER_APP = "flwr-serverapp"

QUICK = """
import sys, time
if sys.argv and sys.argv[0].endswith("flower-supernode"):
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection
    for module in (heartbeat, fleet_http_connection):
        module.HEARTBEAT_DEFAULT_INTERVAL = 10  # the dead are missed after 20 s, not 60
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.2))  # it sleeps 3 s between two looks
"""


def quicken(folder: Path) -> None:
    """Write what shortens Flower's sleeps, for PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(QUICK)


def install(folder: Path) -> None:
    """Write what shortens the waiting, for PATH and PYTHONPATH."""
    warm.install(folder, warm.CLIENT_APP, SERVER_APP)
    quicken(folder)


def halt(folder: Path) -> None:
    """Servers wait after the step that FOLDER/halt names, as long as it does."""
    from partavg.flower.run import FederatedRun

    rows = FederatedRun.__iter__

    def named() -> str:
        return (folder / "halt").read_text() if (folder / "halt").exists() else ""

    def halting(self: FederatedRun) -> Iterator[Any]:
        for row in rows(self):
            yield row
            while named() == str(row["step"]):
                time.sleep(0.05)

    FederatedRun.__iter__ = halting  # type: ignore[method-assign]


def main(folder: Path) -> None:
    """Import what clients and servers need, then serve."""
    import httpcore  # noqa: F401
    import tests.flower.federation  # noqa: F401
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    halt(folder)
    warm.serve(folder, {warm.CLIENT_APP: flwr_clientapp, SERVER_APP: flwr_serverapp})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
