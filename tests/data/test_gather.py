"""Samples on the device and in host memory: the same batches, one step ahead."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tasks
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Images, Participation, Schedule, Simulation, build, iid
from partavg.data import gather
from partavg.data.gather import FromDevice, FromHost, chosen_store, gather_from
from partavg.data.samples import Samples

CPU = torch.device("cpu")
SAMPLES = Samples(
    {"x": torch.randn(40, 3), "y": torch.arange(80).view(40, 2)}, (torch.arange(40), torch.rand(40))
)
NAMES = "partavg-gather"


def drawn(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(40, (4, 5), generator=generator), torch.full((4,), step)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAMES)]


def same(one: Any, other: Any) -> bool:
    (ours, key), (theirs, other_key) = one, other
    return torch.equal(key, other_key) and all(map(torch.equal, ours.tensors, theirs.tensors))


def test_any_order_of_steps_gives_the_same_batches() -> None:
    """Also steps that were not expected, as after a resume."""
    near, far = FromDevice(SAMPLES, CPU), FromHost(SAMPLES, CPU)
    for step in (1, 2, 3, 9, 10, 2, 3, 3, 1):
        assert same(near(step, drawn), far(step, drawn)), step


def test_the_next_batch_is_gathered_ahead() -> None:
    far, steps = FromHost(SAMPLES, CPU), []

    def draw(step: int) -> tuple[Tensor, Tensor]:
        steps.append(step)
        return drawn(step)

    for step in (1, 2, 3):
        far(step, draw)
    assert steps == [1, 2, 3, 4]


def test_an_error_in_the_thread_is_raised_where_its_batch_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, wrong = gather._gathered, drawn(3)[0].flatten()

    def fails(samples: Samples, rows: Tensor, room: Samples | None) -> Samples:
        if torch.equal(rows, wrong):
            raise OSError("the file is gone")
        return whole(samples, rows, room)

    monkeypatch.setattr(gather, "_gathered", fails)
    far = FromHost(SAMPLES, CPU)
    far(1, drawn)
    far(2, drawn)
    with pytest.raises(OSError, match="the file is gone"):
        far(3, drawn)
    assert same(far(4, drawn), FromDevice(SAMPLES, CPU)(4, drawn)), "and others can be had"


def test_threads_end_with_what_they_are_for() -> None:
    before = threads()
    far = FromHost(SAMPLES, CPU)
    far(1, drawn)
    (started,) = (thread for thread in threads() if thread not in before)
    del far
    gc.collect()
    started.join(10)
    assert not started.is_alive()


def simulation(samples: Any = None, **options: Any) -> Simulation:
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3))
    settings: dict[str, Any] = {"schedule": Schedule.partial(4), "lr": 0.1, "batch": 4}
    settings |= {"engine": "looped", **options}
    return Simulation(model, F.cross_entropy, samples or (x, y), iid(y, 6, 0), **settings)


@pytest.mark.parametrize(
    "options",
    [{}, {"participation": Participation(6, 2, 3)}, {"buffers": "recompute"}, {"delay": 2}],
)
def test_both_stores_train_and_evaluate_alike(options: dict[str, Any]) -> None:
    near, far = (simulation(store=store, **options) for store in ("device", "host"))
    assert (near.store, far.store) == ("device", "host")
    for ours, theirs in zip(near.train(10), far.train(10), strict=True):
        assert torch.equal(ours.losses, theirs.losses)
    assert torch.equal(near.workers.params, far.workers.params)
    assert near.evaluate(near.samples) == far.evaluate(far.samples)
    assert near.evaluate_workers(near.samples) == far.evaluate_workers(far.samples)


def test_a_simulation_goes_on_from_a_state_and_may_stop_early() -> None:
    whole, part = simulation(store="host"), simulation(store="host")
    list(whole.train(10))
    for record in part.train(10):
        if record.step == 4:
            break
    saved = part.state()
    again = simulation(store="host")
    list(again.train(7))
    again.load(saved)
    list(again.train(10))
    assert torch.equal(again.workers.params, whole.workers.params)


def test_a_simulation_is_let_go_of_at_once() -> None:
    """Without waiting for the garbage collector, which may leave a GPU full."""
    gc.collect()
    gc.disable()
    try:
        for store in ("device", "host"):
            one = simulation(store=store)
            list(one.train(3))
            gone = weakref.ref(one)
            del one
            assert gone() is None, store
    finally:
        gc.enable()


def test_nothing_is_copied_on_a_cpu() -> None:
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    for store in ("auto", "device", "host"):
        assert simulation((x, y), store=store).samples.inputs.data_ptr() == x.data_ptr()


def test_auto_leaves_what_would_fill_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_store(SAMPLES, CPU, "auto") == "device"
    for free, store in ((2 * SAMPLES.bytes, "device"), (2 * SAMPLES.bytes - 2, "host")):
        monkeypatch.setattr(gather, "free_on", lambda device, free=free: free)
        assert chosen_store(SAMPLES, torch.device("cuda"), "auto") == store
        assert chosen_store(SAMPLES, torch.device("cuda"), "device") == "device"
    monkeypatch.setattr(gather, "free_on", lambda device: 0)
    assert isinstance(gather_from(SAMPLES, CPU), FromDevice), "it is there already"


def test_what_a_device_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Tensor, device: torch.device) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Tensor, "to", full)
    with pytest.raises(ValueError, match=r"the samples need .*, more than is free on cpu"):
        gather_from(SAMPLES, CPU, "device")
    with pytest.raises(ValueError, match="store 'disk' is not known: use auto, device, host"):
        gather_from(SAMPLES, CPU, "disk")


def test_recipes_choose_the_store(tmp_path: Path) -> None:
    runs = {
        store: tasks.run(tmp_path / store, engine={"store": store}) for store in ("device", "host")
    }
    found = {store: tasks.finish(run) for store, run in runs.items()}
    for outcome in found.values():
        assert b"store" in outcome.pop("config")
    assert found["device"] == found["host"]
    half = tasks.run(tmp_path / "half", engine={"store": "host"})
    for row in half:
        if row["step"] == 7:
            half.save()
            break
    again = tasks.run(tmp_path / "half", engine={"store": "host"}, resume=True)
    assert {**tasks.finish(again), "config": b""} == {**found["host"], "config": b""}


def test_images_are_fitted_where_they_are() -> None:
    images = torch.randint(0, 256, (60, 1, 4, 4), dtype=torch.uint8)
    fitted = Images.fit(images)
    assert torch.equal(fitted.to(CPU).mean, fitted.mean)
    config = tasks.config()
    data = tasks.data()._replace(train=Samples(images, torch.arange(60) % 3))
    found = build.transform(config, data)
    assert found is not None
    assert torch.equal(found.mean, fitted.mean)
    for wrong in (images.float(), images[0], images.numpy(), None):
        with pytest.raises(ValueError, match="images of bytes are normalized"):
            Images.fit(wrong)
