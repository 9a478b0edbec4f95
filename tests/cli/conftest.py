from pathlib import Path

import pytest
from tests.cli.program import RECIPE


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path
