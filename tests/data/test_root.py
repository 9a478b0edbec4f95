from pathlib import Path

import platformdirs
import pytest
from platformdirs import macos, unix, windows

from partavg.data.root import root


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PARTAVG_DATA", raising=False)


def test_the_first_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", unix.Unix)
    assert root() == Path("/home/someone/.cache/partavg/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert root() == Path("/cache/partavg/data")
    monkeypatch.setenv("PARTAVG_DATA", "~/sets")
    assert root() == Path("/home/someone/sets")
    assert root(Path("here")) == Path("here")


@pytest.mark.parametrize(
    ("system", "folder"),
    [(macos.MacOS, "/home/someone/Library/Caches"), (windows.Windows, "/local")],
)
def test_other_systems(system: type, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither an author's folder nor one named Cache, which Windows' custom would add."""
    monkeypatch.setattr(platformdirs, "PlatformDirs", system)
    monkeypatch.setattr(windows, "get_win_folder", {"CSIDL_LOCAL_APPDATA": "/local"}.__getitem__)
    assert root() == Path(folder) / "partavg" / "data"
