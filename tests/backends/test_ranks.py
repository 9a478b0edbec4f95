"""Workers dealt over real processes do what they do in one."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests import tasks
from tests.outside import FedDyn, Noisy, median, plain_sum
from tests.together import together
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.aggregates import Median, NormBound, Trimmed
from partavg.attacks import LabelFlip, LittleIsEnough, Noise, SignFlip
from partavg.backends import ranks
from partavg.backends.processes import Processes, check_same, dealt_evenly
from partavg.backends.ranks import Agreed, Ranks
from partavg.backends.simulate import Simulation
from partavg.core.adapt import AdaComm, FedLAMA, PostLocal
from partavg.core.pace import Drawn, Fixed
from partavg.core.participation import Participation
from partavg.core.schedule import Schedule
from partavg.data.split import dirichlet
from partavg.session import Diverged
from partavg.solvers import SOLVERS
from partavg.solvers.adam import Adam, adamw
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD

WORKERS, STEPS = 7, 9

PLAIN: dict[str, dict[str, Any]] = {
    "periodic": {"schedule": Schedule.periodic(3)},
    "synchronous": {"schedule": Schedule.synchronous()},
    "weighted": {"weights": "samples"},
    "weighted one by one": {"weights": [3.0, 1.0, 0.5, 2.0, 1.0, 0.0, 4.0]},
    "in host memory": {"store": "host", "participation": Participation(WORKERS, 4, 3, "permute")},
    "chunks": {"engine": "vmapped", "chunk": 2},
    "auto": {"engine": "auto"},
    "one row each": {"participation": Participation(WORKERS, 3, 2, "none"), "solver": FedProx()},
    "permuted": {"participation": Participation(WORKERS, 4, 3, "permute"), "solver": SCAFFOLD()},
    "averaged": {"participation": Participation(WORKERS, 5, 4, "average"), "solver": SCAFFOLD()},
    "heard": {"participation": Participation(WORKERS, 4, 4, "listen"), "solver": SGD(0.9)},
    "heard, controlled": {"participation": Participation(WORKERS, 3, 8, "listen"),
                          "solver": SCAFFOLD()},
    "rolling": {"participation": Participation(WORKERS, 5, 8, "permute", rolling=True),
                "solver": SCAFFOLD(SGD(0.9)), "bank": "cpu"},
    "rolling, heard": {"participation": Participation(WORKERS, 4, 8, "listen", rolling=True),
                       "solver": SGD(0.9), "buffers": "every"},
    "rolling, heard, controlled": {"solver": SCAFFOLD(SGD(0.9)), "schedule": Schedule.partial(2),
                                   "participation": Participation(WORKERS, 5, 8, "listen",
                                                                  rolling=True)},
    "rolling, kept": {"participation": Participation(WORKERS, 4, 8, "none", rolling=True)},
    "rolling, personal": {"participation": Participation(WORKERS, 4, 8, "listen", rolling=True),
                          "local": ["3.*"], "solver": FedProx(0.5, SGD(0.9))},
    "kept": {"participation": Participation(WORKERS, 4, 3, "none"), "solver": SGD(0.9)},
    "kept by all": {"participation": Participation(WORKERS, WORKERS, 3, "permute"), "bank": "cpu"},
    "paced": {"pace": Fixed(4, (1, 4, 2), WORKERS), "solver": SOLVERS["fednova"]()},
    "late": {"delay": 2, "pace": Drawn(4, 2, 4, WORKERS),
             "solver": Outer(Adam(0.9, 0.99, 1e-3), 0.02, base=adamw())},
    "late and kept": {"delay": 3, "participation": Participation(WORKERS, 4, 5, "none")},
    "post-local": {"adapt": PostLocal(5)},
    "adacomm": {"adapt": AdaComm(3)},
    "fedlama": {"adapt": FedLAMA(), "schedule": Schedule.partial(2), "partition": "layer"},
    "aggregated": {"aggregate": median},
    "aggregated late": {"aggregate": plain_sum, "delay": 2, "solver": SCAFFOLD()},
    "noisy": {"aggregate": Noisy(), "buffers": "local",
              "participation": Participation(WORKERS, 5, 4, "average")},
    "attacked": {"attack": LittleIsEnough(0.3, z=1.0), "aggregate": Trimmed(0.3)},
    "attacked, drawn": {"attack": Noise(0.5), "weights": "samples", "aggregate": Median(),
                        "participation": Participation(WORKERS, 4, 3, "permute")},
    "attacked, late": {"attack": SignFlip(clients=(0, 5)), "delay": 2, "max_weight": 1.5,
                       "weights": "samples"},
    "mislabeled": {"attack": LabelFlip(clients=(0, 1, 2, 3)), "aggregate": NormBound(),
                   "participation": Participation(WORKERS, 4, 3, "average")},
    "from outside": {"participation": Participation(WORKERS, 4, 3, "average"), "solver": FedDyn()},
    "personal": {"local": ["3.*"], "solver": FedProx(0.5, SGD(0.9))},
    "personal, permuted": {"local": ["1.*", "3.bias"], "solver": SGD(0.9),
                           "participation": Participation(WORKERS, 4, 3, "permute")},
    "personal, averaged": {"local": ["1.*"], "solver": SOLVERS["adam"](), "bank": "cpu",
                           "participation": Participation(WORKERS, 5, 4, "average")},
    "personal, kept": {"local": ["0.*"], "participation": Participation(WORKERS, 4, 3, "none")},
    "personal, some never": {"local": ["3.*"], "participation": Participation(WORKERS, 4)},
    **{f"buffers {name}": {"buffers": name} for name in ("every", "local", "recompute")},
    "buffers frozen": {"buffers": "frozen", "freeze_at": 5},
}  # fmt: skip
ALL = {**SOLVERS, "feddyn": FedDyn}
CASES = PLAIN | {f"solver {name}": {"solver": make()} for name, make in ALL.items()}


def task() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(91, 5, generator=generator).double()
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def simulation(processes: Processes | None, split: int = WORKERS, **options: Any) -> Simulation:
    """A network with BatchNorm in float64, on shares of different sizes."""
    torch.manual_seed(0)
    x, y = task()
    model = nn.Sequential(
        nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    given = {"schedule": Schedule.partial(4), "lr": lambda step: 0.1 / step**0.5, **options}
    return Simulation(
        model, F.cross_entropy, (x, y), dirichlet(y, split, 0, minimum=4),
        batch=4, processes=processes, **{"engine": "looped", **given},
    )  # fmt: skip


def story(made: Simulation, until: int) -> dict[str, Any]:
    """All that a simulation shows on the way, and its state at the end."""
    told = [
        [*record.losses.tolist(), made.mean_loss(record.losses), record.bytes, record.messages]
        for record in made.train(until)
    ]
    whole = [made.evaluate(task()), *made.evaluate_workers(task()), made.discrepancy()]
    whole.append(made.largest().tolist())
    whole += made.evaluate_clients(task(), dirichlet(task()[1], WORKERS, 1, minimum=1))
    return {"told": told, "whole": whole, "state": made.state()}


def distance(one: Any, other: Any) -> float:
    """The largest difference between two stories; of another shape or kind is infinitely far."""
    if isinstance(one, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        return float((one - other).abs().max()) if one.numel() else 0.0
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return float("inf")
        return max((distance(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return float("inf")
        return max(map(distance, one, other), default=0.0)
    if isinstance(one, int | float):
        return abs(one - other)
    return 0.0 if one == other else float("inf")


def same_stories(processes: Ranks) -> dict[str, float]:
    """How far each case is from one process; what others than rank 0 see must be the same."""
    ours, alone = {}, {}
    for number, (name, options) in enumerate(CASES.items()):
        ours[name] = story(simulation(processes, **options), STEPS)
        seen = processes.each((ours[name]["told"], ours[name]["whole"]))
        assert all(repr(one) == repr(seen[0]) for one in seen), name
        if number % processes.size == processes.rank:
            alone[name] = story(simulation(None, **options), STEPS)
    expected = {name: told for some in processes.each(alone) for name, told in some.items()}
    return {} if processes.rank else {name: distance(ours[name], expected[name]) for name in CASES}


def resumed(processes: Ranks) -> dict[str, float]:
    """How far a run that goes on, in as many processes or others, is from one without a stop."""
    found = {}
    for name in (
        "kept",
        "heard, controlled",
        "rolling",
        "rolling, heard, controlled",
        "late",
        "late and kept",
        "fedlama",
        "personal, averaged",
    ):
        whole = state(processes, name, STEPS)
        half = state(processes, name, 5)
        again = state(processes, name, STEPS, half if processes.rank == 0 else None)
        if processes.rank == 0:
            found[f"{name}, as many"] = distance(whole, again)
            alone = state(None, name, STEPS, half)
            found[f"{name}, alone"] = distance(whole, alone) // 1e-9
        again = state(processes, name, STEPS, state(None, name, 5) if processes.rank == 0 else None)
        if processes.rank == 0:
            found[f"{name}, from alone"] = distance(whole, again) // 1e-9
    return found


def state(processes: Processes | None, name: str, until: int, *begin: Any) -> dict[str, Any]:
    """Where a case is after some steps, from its start or from another state."""
    made = simulation(processes, **CASES[name])
    for saved in begin:
        made.load(saved)
    for _ in made.train(until):
        pass
    return made.state()


def mistakes(processes: Ranks) -> list[str]:
    """What is said of mistakes of one rank, of the first, and of all."""

    def fails(rank: int) -> str:
        try:
            with processes.together():
                if processes.rank == rank:
                    raise ValueError("no such thing")
                processes.first(lambda: None)  # some wait here, and must hear of it
        except Agreed as error:
            return str(error).replace(processes.roll.name(1), "rank 1")
        return "nothing"

    def uneven(value: str) -> str:
        try:
            check_same("recipe", processes.each(value))
        except ValueError as error:
            return str(error)
        return "nothing"

    try:
        simulation(processes, split=2)
    except ValueError as error:
        few = str(error)
    return [fails(0), fails(1), fails(9), uneven("a"), uneven("ab"[processes.rank // 2]), few]


def diverged(processes: Ranks, folder: Path) -> str:
    """What is said of workers whose numbers are not finite any more."""
    sections = {"training": {"workers": 5, "lr": 1e30}, "averaging": {"interval": 100, "parts": 1}}
    try:
        for _ in tasks.run(folder, processes=processes, **sections):
            pass
    except Diverged as error:
        return str(error)
    return "nothing"


def paces(processes: Ranks) -> list[float]:
    """How long each rank worked, where the second takes its time and all wait for it."""
    losses, now = torch.zeros(1), 0.0
    with patch.object(ranks, "perf_counter", lambda: now):
        processes.ended(1, losses, processes.size)
        now = 0.25 if processes.rank == 1 else 0.0
        processes.ended(2, losses, processes.size)
        return list(processes.seconds)


def asked_to_stop(processes: Ranks) -> list[bool]:
    """Whether ranks stop: before and after one of them is asked."""
    before = processes.stopping
    processes.asks = lambda: processes.rank == 2
    processes.ended(3, torch.zeros(1), processes.size)
    processes.asks = lambda: False
    return [before, processes.stopping]


def everything(processes: Ranks, folder: Path) -> dict[str, Any]:
    return {
        "same": same_stories(processes),
        "resumed": resumed(processes),
        "mistakes": mistakes(processes),
        "diverged": diverged(processes, folder),
        "seconds": paces(processes),
        "stopping": asked_to_stop(processes),
    }


@pytest.mark.slow
def test_three_processes_do_what_one_does(tmp_path: Path) -> None:
    first, *others = together(3, tmp_path, everything, tmp_path / "run")
    assert first["same"].keys() == CASES.keys()
    assert {name: far for name, far in first["same"].items() if not far <= 1e-9} == {}
    assert {name: far for name, far in first["resumed"].items() if far} == {}
    for told in (first, *others):
        assert told["mistakes"] == [
            "no such thing",
            "rank 1: no such thing",
            "nothing",
            "nothing",
            "rank 2 has recipe b, rank 0 has a: start all ranks with the same",
            "3 ranks cannot share 2 active workers: start 2 at most",
        ]
        assert told["stopping"] == [False, True]
        assert told["seconds"] == [0.0, 0.25, 0.0]
        assert re.search(r" of worker \d \(rank \d\)", told["diverged"])
        assert told["diverged"] == first["diverged"]


def test_shares_are_even_and_in_order() -> None:
    for count in range(12):
        for size in range(1, 6):
            dealt = [list(range(count))[share] for share in dealt_evenly(count, size)]
            assert [item for share in dealt for item in share] == list(range(count))
            assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
            assert sorted(map(len, dealt), reverse=True) == list(map(len, dealt))
