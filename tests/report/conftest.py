import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import comparison, make
from tests.report.visit import Visit

from partavg.report.page import write_page
from partavg.report.runs import gather

REQUIRED = os.environ.get("PARTAVG_BROWSER") == "required"

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests; where it is required, its absence is a failure."""
    found = shutil.which("chromium")
    if not found:
        if REQUIRED:
            pytest.fail("PARTAVG_BROWSER=required, but there is no chromium: install it")
        pytest.skip("there is no chromium on this machine")
    name = "playwright.sync_api"
    api = import_module(name) if REQUIRED else pytest.importorskip(name)
    with api.sync_playwright() as driver, tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home}
        opened = driver.chromium.launch(executable_path=found, args=FLAGS, env=environment)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison with two seeds, and a run that is not finished."""
    folder = tmp_path_factory.mktemp("report")
    comparison(folder / "runs", steps=300)
    make(folder / "runs" / "open", steps=300, finished=False)
    return write_page(folder / "report.html", gather([folder / "runs"]))


@pytest.fixture
def visit(browser: Any, written: Path) -> Iterator[Visit]:
    with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        made = Visit(context.new_page(), written)
        yield made
        assert made.complaints == []
        assert made.requests == [written.as_uri()], "nothing but the page itself"
