"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """As installed; in words where Python finds but its sources, as by PYTHONPATH."""
    try:
        return version("partavg")
    except PackageNotFoundError:
        return "not installed"
