"""How much other work on a machine slows a run: threads that spin while they wait, or sleep.

    python benchmarks/busy.py [--runs 3]

A short run of the demo as a user starts it, alone and beside one busy process for each core. The
command line tells torch's threads to spin for a moment only (GOMP_SPINCOUNT); compared with what
they do otherwise. Seconds of training as the run itself counts them: all, from fastest to slowest.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLICIES = {"as libgomp does": {"GOMP_SPINCOUNT": "300000"}, "as `partavg` does": {}}
COMMAND = [sys.executable, "-m", "partavg", "run", "demo", "--set", "training.steps=60"]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing as fast as they can."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def seconds(environment: dict[str, str]) -> float:
    """What one run takes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [*COMMAND, "--out", str(out)]
        subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
        return float(json.loads((out / "summary.json").read_text())["seconds"])


def main() -> None:
    """Print a line for each case; runs of the two policies take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    for processes in (0, os.cpu_count() or 1):
        found: dict[str, list[float]] = {name: [] for name in POLICIES}
        with busy(processes):
            for _ in range(runs):
                for name, environment in POLICIES.items():
                    found[name].append(seconds(environment))
        for name, values in found.items():
            listed = ", ".join(f"{value:.1f}" for value in sorted(values))
            print(f"{processes} busy processes, waiting {name}: {listed} s", flush=True)


if __name__ == "__main__":
    main()
