import sys
from pathlib import Path

import pytest

from partavg.data.root import root


def test_the_first_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PARTAVG_DATA", raising=False)
    assert root() == Path("/home/someone/.cache/partavg/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert root() == Path("/cache/partavg/data")
    monkeypatch.setenv("PARTAVG_DATA", "~/sets")
    assert root() == Path("/home/someone/sets")
    assert root(Path("here")) == Path("here")


@pytest.mark.parametrize(
    ("platform", "folder"),
    [("darwin", "/home/someone/Library/Caches"), ("win32", "/local")],
)
def test_other_systems(platform: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    monkeypatch.delenv("PARTAVG_DATA", raising=False)
    assert root() == Path(folder) / "partavg" / "data"
