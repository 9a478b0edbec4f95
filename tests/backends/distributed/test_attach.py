import pytest
from tests.backends.distributed.loops import WORKERS, Case, attached, distance, simulated
from tests.outside import FedDyn, Noisy, median, plain_sum
from tests.ranks import Ranks

from partavg.aggregates import NormBound, Trimmed
from partavg.core.adapt import AdaComm, FedLAMA, PostLocal
from partavg.solvers.adam import adam, adamw
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer, fedadam, fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD
from partavg.solvers.vrl_sgd import VRLSGD

MOMENTUM = SGD(momentum=0.9, weight_decay=1e-2)
PLAIN = ("SGD", {})
NESTEROV = ("SGD", {"momentum": 0.9, "nesterov": True})


CASES = {
    "partial": Case({"interval": 4}),
    "periodic": Case({"interval": 4, "parts": 1}),
    "between": Case({"interval": 4, "parts": 2}),
    "synchronous": Case({"interval": 1}),
    "layers": Case({"interval": 3, "partition": "layer"}),
    "blocks": Case({"interval": 4, "partition": "blocks", "buffers": "every"}),
    "local buffers": Case({"interval": 4, "buffers": "local"}),
    "delay": Case({"interval": 4, "delay": 2}),
    "delayed periodic": Case({"interval": 4, "parts": 1, "delay": 3}),
    "post-local": Case({"interval": 4, "adapt": PostLocal(5)}),
    "adacomm": Case({"interval": 4, "adapt": AdaComm(4)}, settled=(4, 8)),
    "fedlama": Case({"interval": 3, "partition": "layer", "adapt": FedLAMA(2)}),
    "nesterov": Case({"interval": 4}, NESTEROV, {"solver": SGD(momentum=0.9, nesterov=True)}),
    "adam": Case({"interval": 4}, ("Adam", {}), {"solver": adam()}),
    "adamw": Case({"interval": 4}, ("AdamW", {}), {"solver": adamw()}),
    "fedprox": Case(
        {"interval": 4, "solver": FedProx(0.5)}, simulated={"solver": FedProx(0.5, MOMENTUM)}
    ),
    "fedprox adam": Case(
        {"interval": 4, "solver": FedProx(0.5)}, ("Adam", {}), {"solver": FedProx(0.5, adam())}
    ),
    "scaffold": Case({"interval": 4, "solver": SCAFFOLD()}, PLAIN, decay=0.9),
    "scaffold momentum": Case(
        {"interval": 4, "solver": SCAFFOLD()}, simulated={"solver": SCAFFOLD(MOMENTUM)}, decay=0.8
    ),
    "scaffold nesterov": Case(
        {"interval": 4, "parts": 2, "solver": SCAFFOLD()},
        NESTEROV,
        {"solver": SCAFFOLD(SGD(momentum=0.9, nesterov=True))},
    ),
    "aggregated": Case({"interval": 4, "aggregate": median}),
    "trimmed": Case({"interval": 4, "aggregate": Trimmed(0.3)}),
    "norm bound": Case({"interval": 4, "parts": 1, "aggregate": NormBound(0.5)}),
    "aggregated late": Case({"interval": 4, "aggregate": plain_sum, "delay": 2}),
    "noisy": Case({"interval": 4, "aggregate": Noisy(), "buffers": "local"}),
    "from outside": Case(
        {"interval": 4, "solver": FedDyn(0.3)}, simulated={"solver": FedDyn(0.3, MOMENTUM)}
    ),
    "vrl-sgd": Case({"interval": 4, "solver": VRLSGD()}, PLAIN),
    "vrl-sgd momentum": Case(
        {"interval": 4, "solver": VRLSGD()}, simulated={"solver": VRLSGD(MOMENTUM)}, decay=0.8
    ),
    "fedavgm": Case(
        {"interval": 4, "solver": fedavgm()}, simulated={"solver": fedavgm(base=MOMENTUM)}
    ),
    "fedadam": Case({"interval": 4, "solver": fedadam()}, PLAIN),
    "outer fedprox": Case(
        {"interval": 4, "solver": Outer(SGD(momentum=0.5), 0.7, base=FedProx(0.1)), "mix": 0.3},
        PLAIN,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_as_the_simulator_does(ranks: Ranks, name: str) -> None:
    case = CASES[name]
    case.simulated = {
        "solver": MOMENTUM,
        **{k: v for k, v in case.options.items() if k == "solver"},
        **case.simulated,
    }
    expected = simulated(case)
    found = ranks(attached, case)
    if case.options.get("buffers") == "local":  # the simulator's u has averaged ones
        for model in (rows[-1] for rows in found + expected):
            del model["1.running_mean"], model["1.running_var"]
    for rank in range(WORKERS):
        for step, (one, other) in enumerate(zip(found[rank], expected[rank], strict=True), 1):
            if step not in case.settled:
                assert distance(one, other) < 1e-9, f"rank {rank}, step {step}"
    assert all(distance(found[0][-1], found[rank][-1]) == 0 for rank in range(WORKERS))
