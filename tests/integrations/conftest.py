from collections.abc import Iterator

import pytest
from tests.integrations.frameworks import RANKS, as_torchrun
from tests.ranks import Ranks, started


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Two ranks for all tests: each imports a framework once, which takes seconds."""
    with started(RANKS) as ranks:
        ranks(as_torchrun)
        yield ranks
