"""A federation of one-row clients is the simulator, number for number."""

from pathlib import Path
from typing import Any

import pytest
from tests.flower.federation import (
    PERIODIC,
    SOLVERS,
    assert_equal,
    federation,
    server,
    simulation,
)


def assert_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = server(federation(tmp_path, changes))
    for _ in run:
        pass
    assert_equal(run.model(), simulation(changes).consensus())


@pytest.mark.parametrize("scheme", ["periodic", "partial"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_federation_is_the_simulation(tmp_path: Path, solver: str, scheme: str) -> None:
    assert_the_same(tmp_path, SOLVERS[solver] | (PERIODIC if scheme == "periodic" else {}))
