"""What each solver costs per iteration, against SGD with momentum, on a small network.

    python benchmarks/solvers.py [--device cuda]

Solvers take turns within one run; ratios are medians of the ratios round by round.
"""

import argparse
from statistics import median

import torch
from torch.nn import functional as F

import partavg
from engines import spread, take_turns
from partavg.models import mlp
from partavg.solvers.adam import adam, adamw
from partavg.solvers.fednova import FedNova
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import diloco, fedadam, fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.vrl_sgd import VRLSGD

WORKERS, BATCH, ITERATIONS, ROUNDS = 128, 32, 5, 21
BASE = partavg.SGD(momentum=0.9)
SOLVERS: dict[str, partavg.Solver] = {
    "sgd": BASE,
    "fedprox": FedProx(0.01, BASE),
    "scaffold": SCAFFOLD(BASE),
    "vrl_sgd": VRLSGD(BASE),
    "fednova": FedNova(BASE),
    "fedavgm": fedavgm(base=BASE),
    "fedadam": fedadam(base=BASE),
    "adam": adam(),
    "adamw": adamw(),
    "diloco": diloco(),
}


def simulation(solver: partavg.Solver, device: str) -> partavg.Simulation:
    """128 copies of a network with two hidden layers, averaged in 8 parts."""
    torch.manual_seed(0)
    x, y = torch.randn(4096, 784), torch.randint(0, 10, (4096,))
    return partavg.Simulation(
        mlp((784,), 10, hidden=(64, 64)),
        F.cross_entropy,
        (x, y),
        partavg.iid(y, WORKERS, seed=0),
        schedule=partavg.Schedule.partial(8),
        solver=solver,
        lr=0.01,
        batch=BATCH,
        engine="vmapped",
        device=device,
    )


def main() -> None:
    """Print the times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}")
    sides = {}
    for name, solver in SOLVERS.items():
        made = simulation(solver, device)

        def iterate(made: partavg.Simulation = made) -> None:
            for _ in made.train(made.workers.step + ITERATIONS):
                pass
            if device != "cpu":
                torch.cuda.synchronize()

        sides[name] = iterate
    times = take_turns(ROUNDS, **sides)
    for name, seconds in times.items():
        ratio = median(a / b for a, b in zip(seconds, times["sgd"], strict=True))
        print(f"{name:10} {spread(seconds)}  {ratio:5.2f}")


if __name__ == "__main__":
    main()
