"""The folder that holds the datasets."""

import os
import sys
from pathlib import Path

VARIABLE = "PARTAVG_DATA"


def root(given: Path | None = None) -> Path:
    """The folder given, else the one in the environment, else one in the user's cache."""
    if given is not None:
        return given
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    return _user_cache() / "partavg" / "data"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
