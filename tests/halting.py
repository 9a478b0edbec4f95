"""A command that waits for a signal before its end: a test that sends one always comes in time.

    python tests/halting.py STEPS run RECIPE …

is `partavg run RECIPE …` which goes on after so many steps only when it has got a signal; of
several ranks only the first one halts, and the others wait for it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any


def halt_after(steps: int) -> None:
    """From so many steps on, in all simulations of this process, go on only after a signal."""
    from partavg.backends.simulate import Simulation

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # it keeps one that comes early
    train, done = Simulation.train, [0]

    def halting(self: Simulation, *arguments: Any, **options: Any) -> Iterator[Any]:
        for record in train(self, *arguments, **options):
            done[0] += 1
            yield record
            if done[0] == steps:
                os.read(reader, 1)

    Simulation.train = halting  # type: ignore[method-assign]


if __name__ == "__main__":
    from partavg.cli import main

    if os.environ.get("RANK", "0") == "0":
        halt_after(int(sys.argv[1]))
    main(sys.argv[2:], prog_name="partavg")
