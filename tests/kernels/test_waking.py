"""Triton is woken once, in a thread; a pretended one counts how often."""

import os
import sys
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch

from partavg.kernels import launch, waking

GPU = torch.device("cuda")


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    found: list[torch.device] = []
    monkeypatch.setattr(waking, "_waking", [])
    monkeypatch.setattr(waking, "lacks", lambda device: "")
    monkeypatch.setitem(
        sys.modules, "partavg.kernels.nothing", SimpleNamespace(prepare=found.append)
    )
    return found


def test_triton_is_woken_once(woken: list[torch.device]) -> None:
    waking.wait()
    for _ in range(2):
        waking.begin(GPU)
    with launch.compiling_ahead():
        pass
    assert not waking._waking[0].is_alive()
    assert woken == [GPU]


def test_on_a_cpu_or_without_triton_nobody_is_woken(
    woken: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    waking.begin(torch.device("cpu"))
    monkeypatch.setattr(waking, "lacks", lambda device: "Triton is not installed")
    waking.begin(GPU)
    assert not waking._waking


def test_without_another_thread_the_first_kernel_wakes_it(
    woken: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(waking.Thread, "start", refuses)
    waking.begin(GPU)
    waking.wait()
    assert not woken


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forks_when_triton_is_awake(
    woken: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, read = Event(), Event()

    def prepare(device: torch.device) -> None:
        asked.set()
        woken.append(device)

    monkeypatch.setattr(sys.modules["partavg.kernels.nothing"], "prepare", prepare)
    monkeypatch.setattr(waking.Thread, "join", lambda thread: read.set())
    waking.begin(GPU)
    assert asked.wait(60)
    if (child := os.fork()) == 0:
        os._exit(0 if read.is_set() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_fails_is_said_by_the_first_kernel_that_is_needed(
    woken: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "partavg.kernels.nothing", None)
    waking.begin(GPU)
    waking.wait()
    assert not woken
