from collections.abc import Iterator

import pytest
from tests.backends.distributed.loops import WORKERS
from tests.ranks import Ranks, started


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Three ranks for all tests that leave them whole."""
    with started(WORKERS) as ranks:
        yield ranks


@pytest.fixture(scope="package")
def four() -> Iterator[Ranks]:
    """Four ranks for all tests of meshes."""
    with started(4) as ranks:
        yield ranks


@pytest.fixture(scope="package")
def two() -> Iterator[Ranks]:
    """Two ranks for those that resume what four have saved."""
    with started(2) as ranks:
        yield ranks
