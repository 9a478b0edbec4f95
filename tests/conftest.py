"""Every test checks the shapes of tensors at run time and runs torch on one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

from jaxtyping import install_import_hook

_CHECKED = ["core", "engines", "evaluate", "data", "theory"]
install_import_hook([f"partavg.{name}" for name in _CHECKED], "beartype.beartype").__enter__()

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("partavg", deadline=None, max_examples=60)
settings.load_profile("partavg")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="rewrite tests/regression/*.json")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> bool:
    """Whether recorded trajectories are to be rewritten."""
    return bool(request.config.getoption("--record"))
