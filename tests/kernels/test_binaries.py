"""Compiled CUDA kernels are kept on disk; a pretended torch compiles them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _utils

from partavg.kernels import binaries
from partavg.kernels.kept_files import OFF, VARIABLE, folder
from partavg.torch_internals import cuda_in_two_steps

Compiler = Callable[..., Any]


class Torch:
    """Counts what it compiles and loads."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.devices: list[str] = []
        self.whole: list[str] = []

    def compile(self, source: str, name: str, device: str) -> Any:
        self.compiled.append(source)
        self.devices.append(device)
        return b"binary\n\0of " + source.encode(), f"_Z{name}"

    def load(self, content: bytes, names: list[str]) -> dict[str, str]:
        if not content.startswith(b"binary"):
            raise RuntimeError("CUDA error: device kernel image is invalid")
        return {name: f"{name} {content!r}" for name in names}

    def compile_kernel(self, source: str, name: str, device: str) -> str:
        self.whole.append(source)
        return "made as a whole"


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Torch:
    pretended = Torch()
    monkeypatch.setattr(torch.cuda, "_compile_kernel", pretended.compile_kernel, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(_utils, "_nvrtc_compile", pretended.compile, raising=False)
    monkeypatch.setattr(_utils, "_cuda_load_module", pretended.load, raising=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kernels"))
    return pretended


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "kernels").iterdir())


def test_a_kernel_is_compiled_once(pretended: Torch, tmp_path: Path) -> None:
    first = binaries.kernel("source", "sum")
    assert first == "_Zsum b'binary\\n\\x00of source'"
    assert binaries.kernel("source", "sum") == first
    assert pretended.compiled == ["source"]
    assert [path.suffix for path in kept(tmp_path)] == [".cubin"]
    assert not pretended.whole


@pytest.mark.parametrize("what", ["source", "name", "GPU", "torch", "CUDA"])
def test_a_binary_is_for_what_it_was_made_from(
    what: str, pretended: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries.kernel("source", "sum")
    if what == "GPU":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "2.99")
    elif what == "CUDA":
        monkeypatch.setattr(torch.version, "cuda", "99.1")
    given = {"source": "source", "name": "sum"} | {what: "other"}
    binaries.kernel(given["source"], given["name"])
    assert len(pretended.compiled) == 2
    assert pretended.devices == ["90a", "80" if what == "GPU" else "90a"]


@pytest.mark.parametrize("content", [b"", b"wrong\n_Zsum\nbinary", b"_Zsum\n"])
def test_a_damaged_file_is_made_again(content: bytes, pretended: Torch, tmp_path: Path) -> None:
    first = binaries.kernel("source", "sum")
    kept(tmp_path)[0].write_bytes(content)
    assert binaries.kernel("source", "sum") == first
    assert binaries.kernel("source", "sum") == first
    assert len(pretended.compiled) == 2


def test_one_that_the_driver_refuses_is_made_again(
    pretended: Torch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = binaries.Binary(b"of another driver", "_Zsum")
    binaries.kernel("source", "sum")
    binaries._write(kept(tmp_path)[0], refused)
    assert binaries.kernel("source", "sum").startswith("_Zsum b'binary")
    assert len(pretended.compiled) == 2


def _takes_more(source: str, name: str, device: str, needed: int) -> None: ...


@pytest.mark.parametrize(
    "other",
    [
        lambda source, name, device: b"binary",
        lambda source, name, device: ("text", name),
        _takes_more,
    ],
)
def test_a_torch_with_other_steps_makes_it_as_a_whole(
    other: Compiler, pretended: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_utils, "_nvrtc_compile", other)
    assert binaries.kernel("source", "sum") == "made as a whole"


def test_a_torch_without_steps_makes_it_as_a_whole(
    pretended: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_utils, "_nvrtc_compile")
    assert cuda_in_two_steps() is None
    assert binaries.kernel("source", "sum") == "made as a whole"


def test_the_cache_can_be_switched_off(
    pretended: Torch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, OFF)
    assert binaries.kernel("source", "sum") == "made as a whole"
    monkeypatch.delenv(VARIABLE)
    found = folder()
    assert found is not None
    assert found.name == "kernels"


def test_a_folder_that_cannot_be_written_is_done_without(
    pretended: Torch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(VARIABLE, str(file / "kernels"))
    assert binaries.kernel("source", "sum").startswith("_Zsum")


def test_many_at_a_time_leave_whole_files(pretended: Torch, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: binaries.kernel("source", "sum"), range(32)))
    assert len(made) == 1
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 6), "86"), ((9, 0), "90a"), ((10, 0), "100a")]
)
def test_gpus_by_their_names(capability: tuple[int, int], name: str) -> None:
    assert binaries.called(capability) == name
