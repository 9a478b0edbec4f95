import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg.data import batches as batches_of
from partavg.data.batches import Batches

SPLIT = [torch.arange(0, 7), torch.arange(7, 10), torch.arange(10, 60)]


@given(st.integers(1, 12), st.integers(0, 9))
def test_each_pass_visits_every_sample_once(batch: int, seed: int) -> None:
    batches = Batches(SPLIT, batch, seed)
    steps = 3 * 50 // batch + 1
    stream = torch.cat([batches(step)[0] for step in range(1, steps + 1)], 1)
    for worker, samples in enumerate(SPLIT):
        passes = stream[worker][: stream.shape[1] // len(samples) * len(samples)]
        for each in passes.view(-1, len(samples)):
            assert torch.equal(each.sort().values, samples)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_a_batch_is_a_pure_function_of_the_step(steps: list[int]) -> None:
    fresh = Batches(SPLIT, 4, 0)
    for step in steps:
        for ours, theirs in zip(fresh(step), Batches(SPLIT, 4, 0)(step), strict=True):
            assert torch.equal(ours, theirs)


def test_a_workers_batches_do_not_depend_on_the_other_workers() -> None:
    together = Batches([SPLIT[2], SPLIT[0]], 4, 0)
    alone = Batches([SPLIT[2]], 4, 0)
    for step in (1, 40):
        for ours, theirs in zip(together(step), alone(step), strict=True):
            assert torch.equal(ours[:1], theirs)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 9))
def test_workers_drawn_together_are_those_drawn_alone(sizes: list[int], batch: int) -> None:
    """Whoever has as many samples as others is drawn with them, a few at a time."""
    split = list(torch.split(torch.arange(sum(sizes)), sizes))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches_of, "_MOST", 700)
        together = Batches(split, batch, 0)
    for step in (1, 2, 33):
        found = together(step, np.arange(len(split)))[0]
        for worker in range(len(split)):
            own = Batches(split, batch, 0)(step, np.array([worker]))[0]
            assert torch.equal(found[worker : worker + 1], own)


def test_batches_stay_what_they_were() -> None:
    """Numbers of the first version; a run that goes on needs them."""
    split = [torch.arange(5), torch.arange(5, 10), torch.arange(10, 13)]
    indices, keys = Batches(split, 4, 7)(40)
    assert indices.tolist() == [[1, 3, 4, 2], [6, 9, 7, 5], [10, 12, 11, 11]]
    assert keys.tolist() == [5264379198946188556, 46685341337515245, 1583953191374164277]


def test_passes_workers_and_seeds_are_shuffled_differently() -> None:
    same = [torch.arange(50), torch.arange(50)]
    first = Batches(same, 50, 0)
    orders = [first(1)[0][0], first(2)[0][0], first(1)[0][1], Batches(same, 50, 1)(1)[0][0]]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_shuffles_are_uniform() -> None:
    """Each of 5 samples comes first about equally often."""
    batches = Batches([torch.arange(5)], 5, 0)
    firsts = torch.stack([batches(step)[0][0, 0] for step in range(1, 5001)])
    assert firsts.bincount().float().sub(1000).abs().max() < 150


def test_keys_differ_between_workers_and_steps() -> None:
    batches = Batches(SPLIT, 4, 0)
    keys = torch.cat([batches(step)[1] for step in range(1, 101)])
    assert len(keys.unique()) == 300
    assert (keys >= 0).all()


@pytest.mark.parametrize(
    ("split", "batch", "sentence"),
    [
        (SPLIT, 0, "batch 0 is below 1"),
        ([torch.arange(3), torch.arange(0)], 2, "worker 1 owns no samples"),
    ],
)
def test_batches_of_nothing_are_refused(split, batch: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Batches(split, batch, 0)


def test_streams_are_made_for_those_who_take_part() -> None:
    """Whoever else took part, and in whatever order: the numbers are those of all together."""
    many = [torch.arange(each, each + 5) for each in range(400)]
    some, every = Batches(many, 3, 0), Batches(many, 3, 0)
    generator = np.random.default_rng(0)
    for step in (1, 2, 31, 32, 33, 34, 70, 1):
        workers = generator.permutation(400)[:6]
        for ours, theirs in zip(some(step, workers), every(step), strict=True):
            assert torch.equal(ours, theirs[workers])
    assert len(some._prepared) <= 4 * 6
