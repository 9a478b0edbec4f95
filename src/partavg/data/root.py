"""The folder that holds the datasets."""

import os
from pathlib import Path

from platformdirs import user_cache_path

VARIABLE = "PARTAVG_DATA"


def root(given: Path | None = None) -> Path:
    """The folder given, else the one in the environment, else one in the user's cache."""
    if given is not None:
        return given
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    # On Windows, neither a folder of an author around it nor one named Cache in it.
    return user_cache_path("partavg", appauthor=False, opinion=False) / "data"
