"""How many runs of a sweep beside each other are fastest on this machine.

    python benchmarks/sweep_jobs.py --jobs 1,2,4                       # the demo
    python benchmarks/sweep_jobs.py table1/cifar10-interval8 --data data --steps 300 --mps

sweeps one recipe with 1, 2 and 4 jobs, the same runs each time, and prints the time of each and its
ratio to one job. On a GPU `--mps` does it again under NVIDIA's multi-process service, started for
as long as that takes; without one it says so. `--out FILE.csv` keeps the rows.
"""

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from time import perf_counter

import torch

MPS = "nvidia-cuda-mps-control"


def main() -> None:
    """Time every number of jobs, print a row for each."""
    given = arguments()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    print(f"{given.recipe}, {given.steps} steps, {given.rates} rates; {device}, "
          f"{os.cpu_count()} cores, torch {torch.__version__}")  # fmt: skip
    print("| jobs | MPS | seconds | times as fast as one |\n|---|---|---|---|", flush=True)
    rows = []
    for mps in (False, True) if given.mps else (False,):
        alone = None
        for jobs in given.jobs:
            with service(mps) as environment:
                seconds = timed(given, jobs, environment)
            alone = alone or seconds
            rows.append([jobs, "yes" if mps else "no", f"{seconds:.1f}", f"{alone / seconds:.2f}"])
            print(f"| {' | '.join(map(str, rows[-1]))} |", flush=True)
    if given.out:
        with given.out.open("w", newline="") as file:
            csv.writer(file).writerows([["jobs", "mps", "seconds", "speedup"], *rows])


def arguments() -> argparse.Namespace:
    """What the user wants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", default="demo")
    parser.add_argument(
        "--jobs", default="1,2,4", help="numbers of jobs, the first is compared with"
    )
    parser.add_argument("--steps", type=int, default=300, help="of each run")
    parser.add_argument("--rates", type=int, default=4, help="learning rates tried of each scheme")
    parser.add_argument("--data", type=Path, help="the folder of datasets")
    parser.add_argument("--mps", action="store_true", help="once more under NVIDIA's MPS")
    parser.add_argument("--out", type=Path, help="a file for the rows")
    given = parser.parse_args()
    try:
        given.jobs = [int(number) for number in given.jobs.split(",")]
    except ValueError:
        parser.error(f"--jobs {given.jobs!r} are no numbers: write 1,2,4")
    if given.mps and not (torch.cuda.is_available() and which(MPS)):
        parser.error(f"--mps needs a GPU and {MPS}, and there is not both")
    return given


def timed(given: argparse.Namespace, jobs: int, environment: dict[str, str]) -> float:
    """Seconds that a whole sweep takes, its start included."""
    grid = ",".join(f"{0.01 * 1.1**k:.4g}" for k in range(given.rates))
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable, "-m", "partavg", "sweep", given.recipe, "--grid", f"training.lr={grid}",
            "--schemes", "periodic,partial", "--seeds", "1", "--jobs", str(jobs),
            "--set", f"training.steps={given.steps}", "--set", "checkpoints.every=0",
            "--out", f"{folder}/sweep", *(["--data", str(given.data)] if given.data else []),
        ]  # fmt: skip
        began = perf_counter()
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr or done.stdout)
        return perf_counter() - began


@contextmanager
def service(wanted: bool) -> Iterator[dict[str, str]]:
    """The environment of a sweep: NVIDIA's service runs for as long as it is wanted."""
    if not wanted:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": folder,
            "CUDA_MPS_LOG_DIRECTORY": folder,
        }
        subprocess.run([MPS, "-d"], env=environment, check=True)
        try:
            yield environment
        finally:
            subprocess.run([MPS], env=environment, input="quit\n", text=True, check=False)


if __name__ == "__main__":
    main()
