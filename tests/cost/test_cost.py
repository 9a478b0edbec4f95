"""The cost model: identities, and what gloo took over shaped links."""

from math import isclose

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partavg.core.schedule import Schedule
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost import PARAMETERS, Network, Workload, candidates, cost, recommend
from partavg.cost.recommend import long_enough
from partavg.models import MODELS

works = st.builds(
    Workload,
    st.integers(1, 10**9),
    st.floats(1e-4, 10),
    st.sampled_from([wire.bytes_per_number for wire in WIRE_FORMATS.values()]),
)
networks = st.builds(
    Network,
    st.integers(2, 256),
    st.floats(1e4, 1e11),
    st.floats(0, 1),
    st.sampled_from(["gloo", "nccl"]),
)
schedules = st.integers(1, 64).flatmap(
    lambda interval: st.sampled_from(
        [Schedule(interval, parts) for parts in range(1, interval + 1) if interval % parts == 0]
    )
)


@given(works, networks, st.integers(1, 64))
def test_every_plan_of_an_interval_sends_as_much(
    work: Workload, network: Network, interval: int
) -> None:
    m = network.workers
    for each in candidates(work, network, interval):
        cycle = each.traffic * interval
        assert isclose(cycle, 2 * (m - 1) / m * work.size)
        assert isclose(each.messages * interval, each.schedule.parts)


@given(works, networks, schedules)
def test_more_messages_take_more_time(work: Workload, network: Network, schedule: Schedule) -> None:
    periodic = cost(work, network, Schedule(schedule.interval))
    parted = cost(work, network, schedule)
    assert parted.exchanging >= periodic.exchanging * (1 - 1e-9)


@given(works, networks, schedules, st.floats(1, 100))
def test_a_worse_network_takes_longer(
    work: Workload, network: Network, schedule: Schedule, factor: float
) -> None:
    def seconds(**changes: float) -> float:
        values = {"bandwidth": network.bandwidth, "latency": network.latency, **changes}
        return cost(work, Network(network.workers, **values), schedule).seconds

    assert seconds(latency=network.latency * factor) >= seconds() * (1 - 1e-9)
    assert seconds(bandwidth=network.bandwidth / factor) >= seconds() * (1 - 1e-9)


@given(works, networks, schedules, st.data())
def test_overlap_is_never_slower_and_never_free(
    work: Workload, network: Network, schedule: Schedule, data: st.DataObject
) -> None:
    delay = data.draw(st.integers(0, schedule.interval - 1))
    late, at_once = (cost(work, network, schedule, d) for d in (delay, 0))
    assert late.seconds <= at_once.seconds
    assert late.seconds >= max(work.step, late.exchanging) * (1 - 1e-9), "the link is busy"
    assert 0 <= late.hidden <= 1
    assert at_once.hidden == 0
    longer = cost(work, network, schedule, schedule.interval - 1)
    assert longer.seconds <= late.seconds


def simulated(
    work: Workload, network: Network, schedule: Schedule, delay: int, cycles: int
) -> float:
    """Seconds per iteration, event by event: a slow twin of the formula."""
    duration = network.seconds(work.size / schedule.parts)
    now = free = 0.0
    arrivals: dict[int, float] = {}
    steps = cycles * schedule.interval
    half = 0.0
    for step in range(1, steps + 1):
        now += work.step
        if schedule(step):
            free = max(free, now) + duration
            arrivals[step + delay] = free
        now = max(now, arrivals.pop(step, 0.0))
        if step == steps // 2:
            half = now
    return (now - half) / (steps - steps // 2)


@settings(max_examples=25)
@given(works, networks, schedules, st.data())
def test_the_formula_is_what_happens(
    work: Workload, network: Network, schedule: Schedule, data: st.DataObject
) -> None:
    delay = data.draw(st.integers(0, schedule.interval - 1))
    assume(cost(work, network, schedule).exchanging < 1e4 * work.step)
    happened = simulated(work, network, schedule, delay, cycles=20 * max(1, delay))
    assert isclose(cost(work, network, schedule, delay).seconds, happened, rel_tol=0.1)


@given(works, networks, st.integers(1, 64))
def test_the_recommendation_keeps_its_rule(work: Workload, network: Network, interval: int) -> None:
    found = candidates(work, network, interval)
    chosen = recommend(found).cost
    same = [each for each in found if bool(each.delay) == bool(chosen.delay)]
    fastest = min(each.seconds for each in same)
    assert chosen.seconds <= 1.05 * fastest
    assert all(
        each.seconds > 1.05 * fastest
        for each in same
        if each.schedule.parts > chosen.schedule.parts
    )
    if chosen.delay:
        assert chosen.seconds < 0.9 * min(
            each.seconds for each in found if each.schedule == chosen.schedule and not each.delay
        )


@given(works, networks, st.integers(2, 64))
def test_a_useful_delay_is_the_shortest(work: Workload, network: Network, interval: int) -> None:
    for each in candidates(work, network, interval):
        if each.delay > 1:
            less = cost(work, network, each.schedule, each.delay - 1)
            assert less.seconds > each.seconds


@given(works, networks, st.integers(1, 64))
def test_a_long_interval_can_hide_its_exchanges(
    work: Workload, network: Network, interval: int
) -> None:
    enough = long_enough(work, network, interval)
    assert enough % interval == 0
    assert network.seconds(work.size) <= enough * work.step
    assert enough == interval or network.seconds(work.size) > enough / 2 * work.step


@pytest.mark.parametrize(
    ("size", "latency", "measured"),
    [
        (4e3, 0.02, 0.256),
        (4e4, 0.02, 0.268),
        (4e5, 0.02, 0.306),
        (1e6, 0.02, 0.341),
        (5e6, 0.02, 0.823),
        (2e7, 0.02, 2.9),
        (4e7, 0.02, 5.37),
        (4e5, 0.0, 0.0559),
        (1e6, 0.0, 0.135),
        (5e6, 0.0, 0.675),
        (2e7, 0.0, 2.66),
        (4e7, 0.0, 5.36),
    ],
)
def test_gloo_as_measured(size: float, latency: float, measured: float) -> None:
    """Over 4 workers and 100 Mbit/s: the table of docs/plan.md."""
    assert isclose(Network(4, 12.5e6, latency).seconds(size), measured, rel_tol=0.15)


SHAPES = {
    "cnn": ((1, 28, 28), 62),
    "dropout_cnn": ((3, 32, 32), 10),
    "gpt": ((256,), 256),
    "logistic": ((1, 28, 28), 10),
    "lstm": ((200,), 2),
    "mlp": ((1, 28, 28), 10),
    "resnet20": ((3, 32, 32), 10),
    "vgg11": ((1, 28, 28), 10),
    "wrn16_8": ((3, 32, 32), 10),
    "wrn28_10": ((3, 32, 32), 100),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_sizes_of_our_models_are_right(name: str) -> None:
    with torch.device("meta"):
        model = MODELS[name](*SHAPES[name])
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Network(1, 1.0), "1 workers have nothing to exchange: use 2 or more"),
        (lambda: Network(2, 0.0), "bandwidth of 0.0 B/s"),
        (lambda: Network(2, 1.0, -1.0), "latency of -1.0 s"),
        (lambda: Network(2, 1.0, backend="mpi"), "backend 'mpi' is not known: use gloo or nccl"),
        (lambda: Workload(0, 1.0), "0 parameters"),
        (lambda: Workload(1, float("nan")), "a step of nan s"),
        (lambda: cost(Workload(1, 1.0), Network(2, 1.0), Schedule(4), 4), "delay 4 is not below"),
    ],
)
def test_mistakes(make: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(("exchange", "delay"), [(0.05, 0), (0.1, 0), (0.12, 1), (2.0, 1)])
def test_a_delay_must_save_a_tenth(exchange: float, delay: int) -> None:
    """An exchange of 0.12 steps that is hidden saves 0.12 / 1.12 of the time."""
    network = Network(2, 3e5)
    work = Workload(8_000_000, step=network.seconds(4e6) / exchange)
    chosen = recommend(candidates(work, network, 8)).cost
    assert (chosen.schedule.parts, chosen.delay) == (8, delay)


@given(works, networks, schedules, st.integers(0, 63))
def test_offsets_as_they_would_be_anyway_cost_the_same(
    work: Workload, network: Network, schedule: Schedule, delay: int
) -> None:
    assume(delay < schedule.interval)
    even = Schedule.streaming(schedule.interval, schedule.parts)
    known, found = (cost(work, network, each, delay) for each in (schedule, even))
    for name in ("traffic", "messages", "exchanging", "waiting", "name"):
        one, other = getattr(known, name), getattr(found, name)
        assert one == other or isclose(one, other, abs_tol=1e-12 * known.exchanging)


def test_parts_of_one_step_wait_for_each_other() -> None:
    work, network = Workload(10**6, 1.0), Network(2, 3e5)
    apart = cost(work, network, Schedule(8, offsets=(0, 4)), 3)
    together = cost(work, network, Schedule(8, offsets=(0, 0)), 3)
    each = network.seconds(work.size / 2)
    assert each > 3
    assert isclose(apart.waiting, 2 * (each - 3) / 8)
    assert isclose(together.waiting, (2 * each - 3) / 8)
    assert together.name == "2 parts, overlapped"
