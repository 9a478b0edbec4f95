"""Tests that are about shapes check those of tensors at run time; all run torch on one thread."""

import os
import random
import signal
from collections import Counter
from itertools import chain, islice
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

from tests import shapes

# beartype draws which item of a container it checks: not from what tests look at.
with patch.object(random, "getrandbits", random.Random(0).getrandbits):
    from beartype import beartype

    @beartype  # which imports all that it needs
    def _checked(items: list[int]) -> None: ...


shapes.check(["core", "engines", "evaluation", "data", "theory"])

import pytest
import torch
from hypothesis import HealthCheck, settings
from tests.limits import seconds

from partavg.engines import race

torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # it waits for the disk, and no test pulls the plug
race._MOMENT = 0.02  # which engine is the fastest is not what tests look at
# A job in the background ignores Ctrl-C, and so would all programs that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "partavg",
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no fault of a test
)
settings.load_profile("partavg")
os.environ.setdefault("PYTEST_TIMEOUT", str(seconds(600)))

UNMEASURED = tuple(f"tests/{folder}/" for folder in ("attacks", "data", "engines", "theory"))
"""Their tests use the mathematics no further than its own do."""


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Tests in an order of which each worker is given a piece of the same length to begin with.

    A piece begins with slow tests, all of a module together: they may share what they set up.
    """
    slow: dict[str, list[pytest.Item]] = {}
    quick = []
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.nodeid.partition("::")[0], []).append(item)
        else:
            quick.append(item)
    pieces: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for tests in sorted(slow.values(), key=len, reverse=True):
        min(pieces, key=len).extend(tests)
    rest = iter(quick)
    for piece in pieces:
        piece += islice(rest, max(0, len(items) // workers - len(piece)))
    return [*chain(*pieces), *rest]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first in each worker, so that none is left alone with them at the end.

    Coverage, which halves Python's speed, is measured in the first ten cases of each quick test.
    """
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    cases: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if cases[test] > 10 or item.get_closest_marker("slow") or test.startswith(UNMEASURED):
            item.add_marker("no_cover")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="rewrite recorded numbers and docs/faults.md"
    )


@pytest.fixture
def record(request: pytest.FixtureRequest) -> bool:
    """Whether recorded trajectories are to be rewritten."""
    return bool(request.config.getoption("--record"))
