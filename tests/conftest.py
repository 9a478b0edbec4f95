"""Every test checks the shapes of tensors at run time and runs torch on one thread."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

from jaxtyping import install_import_hook

_CHECKED = ["core", "engines", "evaluation", "data", "theory"]
install_import_hook([f"partavg.{name}" for name in _CHECKED], "beartype.beartype").__enter__()

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# A job in the background ignores Ctrl-C, and so would all programs that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("partavg", deadline=None, max_examples=40)
settings.load_profile("partavg")


_LONG = ("test_runtimes", "test_torchrun", "test_ranks", "test_replicas", "test_attach")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left alone with them at the end."""
    items.sort(key=lambda item: item.path.stem not in _LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="rewrite tests/regression/*.json")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> bool:
    """Whether recorded trajectories are to be rewritten."""
    return bool(request.config.getoption("--record"))
