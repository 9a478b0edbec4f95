"""What a sink needs that may not be installed."""

from importlib.util import find_spec


def check_installed(package: str, called: str) -> None:
    """Raise a ValueError if a package is missing that an extra of the same name brings."""
    found = find_spec(package)
    if found is None or found.origin is None:  # a folder of that name is no package
        raise ValueError(
            f"sink {package!r} needs {called}, which is not installed: "
            f"pip install 'partavg[{package}]'"
        )
