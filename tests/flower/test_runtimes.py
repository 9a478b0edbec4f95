"""Flower's real programs: its simulation runtime; SuperLink and SuperNodes with TLS and keys."""

from collections.abc import Iterator

import pytest
import torch
from tests.flower.federation import BASE, SOLVERS, assert_equal, model, simulation
from tests.flower.programs import Programs

from partavg.folder import RunFolder

REAL = {**BASE, "flower.deadline": 60.0, "flower.wait": 60.0, "flower.patience": 60.0}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    made = Programs(tmp_path_factory.mktemp("flower") / "f")
    yield made
    made.close()


@pytest.mark.timeout(170)
def test_the_simulation_runtime_is_the_simulation(programs: Programs) -> None:
    changes = {**SOLVERS["scaffold"]}
    programs.simulation(3)
    folder = RunFolder(programs.folder / "run-simulated")
    programs.run(programs.app({**REAL, **changes, "flower.folder": str(folder.path)}))
    programs.wait(lambda: folder.finished, "the run", 140)
    trained = model()
    trained.load_state_dict(torch.load(folder.model_path, weights_only=True))
    assert_equal(trained, simulation(changes).consensus())
