"""How long it takes until something happens: help on the command line, and a first step.

    python benchmarks/start.py [--runs 5] [--workers 128] [--device cuda] [--detail]

Processes that begin afresh, in turns; medians of seconds, fastest and slowest. On a GPU run it
twice: the first time may compile kernels and try the engine (PARTAVG_KERNELS=off and an empty
TRITON_CACHE_DIR show what that takes). With --detail it says what functions take, each with all
that it calls, the GPU waited for, so that all takes a little longer.
"""

import argparse
import os
import statistics
import subprocess
import sys
from time import perf_counter

STEP = """
from time import perf_counter as now
times = [now()]
import torch
times.append(now())
import partavg
from partavg import Simulation
times.append(now())
device = torch.device("{device}")
torch.zeros(1, device=device).item()
times.append(now())
{watching}
from partavg.models import MODELS
torch.manual_seed(0)
x, y = torch.randn(2048, 3, 32, 32), torch.randint(10, (2048,))
model = MODELS["{model}"]((3, 32, 32), 10)
split = partavg.iid(y, workers={workers}, seed=0)
simulation = partavg.Simulation(
    model, torch.nn.functional.cross_entropy, (x, y), split, batch=32, lr=0.1, device=device,
    schedule=partavg.Schedule.partial(8), solver=partavg.SGD(momentum=0.9),
)
times.append(now())
for _ in range(3):
    for record in simulation.train(simulation.workers.step + 1):
        record.losses.sum().item()
    times.append(now())
print(simulation.engine.reason)
{telling}
print(*(later - earlier for earlier, later in zip(times, times[1:])))
"""
WATCHING = """
import functools, importlib
spent = {}

def watch(label, place):
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    call = getattr(owner, name)

    @functools.wraps(call)
    def watched(*args, **options):
        finished()
        begun = now()
        try:
            return call(*args, **options)
        finally:
            finished()
            spent[label] = spent.get(label, 0.0) + now() - begun

    setattr(owner, name, watched)

def finished():
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
"""
TELLING = """
for label, seconds in spent.items():
    print("detail", seconds, label)
"""
WATCHED = {
    "the simulation": "partavg.backends.simulate:Simulation.__init__",
    "  samples": "partavg.backends.simulate:as_samples",
    "  samples to the device": "partavg.backends.simulate:gather_from",
    "  the model's copies": "partavg.backends.simulate:RowModel",
    "  the plan": "partavg.backends.simulate:CurrentPlan",
    "  the choice of an engine": "partavg.backends.simulate:choose",
    "    fingerprint": "partavg.engines.remembered:fingerprint",
    "    examine": "partavg.engines.choose:examine",
    "    the loop": "partavg.engines.choose:_expected",
    "    float32 without kernels": "partavg.engines.choose:_problem",
    "    a pass with kernels": "partavg.engines.choose:_fitting",
    "  workers": "partavg.backends.simulate:Workers.start",
    "programs traced": "partavg.engines.fused.program:Program.__init__",
    "waiting for Triton": "partavg.kernels.waking:wait",
    "Triton in its thread": "partavg.kernels.waking:_wake",
    "kernels found or compiled": "partavg.kernels.launch:_compile",
    "CUDA kernels loaded": "partavg.kernels.binaries:_kept",
    "passes of the fused engine": "partavg.engines.fused.engine:Fused._differentiate",
    "a recording": "partavg.engines.fused.cuda_graph:Recorded._record",
}
"""Functions, and what they do; of those that are a name of a module, that name."""
PARTS = (
    "import torch",
    "import partavg",
    "the device",
    "the simulation",
    "first step",
    "second step",
    "third step",
)


def program_of(device: str, model: str, workers: int, *, detail: bool) -> str:
    """What a process does, and watches if details are wanted."""
    watching = WATCHING + "\n".join(f"watch({label!r}, {at!r})" for label, at in WATCHED.items())
    both = {"watching": watching, "telling": TELLING} if detail else {"watching": "", "telling": ""}
    return STEP.format(device=device, model=model, workers=workers, **both)


def timed(command: list[str]) -> tuple[float, list[str]]:
    """Seconds that a command takes, and what it says."""
    start = perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return perf_counter() - start, done.stdout.splitlines()


def details(said: list[str]) -> dict[str, float]:
    """What functions took in a process."""
    lines = (text.removeprefix("detail ") for text in said if text.startswith("detail "))
    return {label: float(seconds) for seconds, _, label in (text.partition(" ") for text in lines)}


def line(name: str, values: list[float]) -> str:
    """The median, and between what."""
    low, high = min(values), max(values)
    return f"{name}: {statistics.median(values):.2f} s ({low:.2f} to {high:.2f}, n = {len(values)})"


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--detail", action="store_true")
    given = parser.parse_args()
    program = program_of(given.device, given.model, given.workers, detail=given.detail)
    helps, said = [], []
    for _ in range(given.runs):
        helps.append(timed([sys.executable, "-m", "partavg", "--help"])[0])
        said.append(timed([sys.executable, "-c", program])[1])
    steps = [[float(word) for word in lines[-1].split()] for lines in said]
    print(line("partavg --help", helps))
    for name, values in zip(PARTS, zip(*steps, strict=True), strict=True):
        print(line(name, list(values)))
    first = PARTS.index("first step") + 1
    print(line("all until the first step is done", [sum(row[:first]) for row in steps]))
    print("engine:", said[-1][0])
    if given.detail:
        found = [details(lines) for lines in said]
        for label in WATCHED:
            if times := [own[label] for own in found if label in own]:
                print(line(label, times))


if __name__ == "__main__":
    main()
