"""Fresh columns: as many in every message, each as often as others, the same everywhere."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.problems import LAYOUT
from tests.solvers.setting import WEIGHTS, made, run
from tests.strategies import rows

from partavg.core.fresh import Fresh
from partavg.core.partition import Span
from partavg.core.schedule import Schedule
from partavg.core.seeds import bits24, fold
from partavg.core.settle import settle_
from partavg.core.share import share_of
from partavg.core.workers import Workers
from partavg.solvers.outer import fedavgm
from partavg.solvers.sgd import SGD


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_each_draw_is_one_column_of_each_run(
    steps: list[tuple[int, int]], one_in: int, step: int
) -> None:
    """Spans are gaps and widths; columns are counted without the gaps in a slow twin."""
    spans, at = [], 0
    for gap, width in steps:
        spans.append(Span(at + gap, at + gap + width))
        at = spans[-1].stop
    fresh = Fresh(tuple(spans), one_in, seed=3)
    every = [column for span in spans for column in range(*span)]
    count = max(1, len(every) // one_in)
    drawn = bits24(torch.tensor(fold(3, "fresh", step, 2)), (count,)).tolist()
    expected = []
    for run_, bits in enumerate(drawn):
        start, stop = run_ * len(every) // count, (run_ + 1) * len(every) // count
        expected.append(every[start + bits * (stop - start) // 2**24])
    places = list(fresh(step, 2))
    found = [
        span.start + place
        for span, some in zip(spans, places, strict=True)
        for place in some.tolist()
    ]
    assert found == expected
    assert fresh.count == count


def test_every_column_is_drawn_as_often() -> None:
    fresh = Fresh((Span(0, 103),), 10, seed=0)
    counts = torch.zeros(103)
    for step in range(4000):
        (columns,) = fresh(step)
        counts[columns] += 1
    assert (counts / 4000 - 10 / 103).abs().max() < 0.02  # 4 standard deviations


def fresh_plan(schedule: Schedule) -> dict[str, Fresh]:
    return {"fresh": Fresh((Span(0, LAYOUT.size),), schedule.parts, 0)}


def test_columns_that_were_not_drawn_stay_and_those_drawn_are_the_mean() -> None:
    schedule = Schedule.partial(4)
    plan, before = made(schedule, **fresh_plan(schedule)), []
    (columns,) = plan.fresh(5, 1)

    def seen(workers: Workers) -> None:
        before.append(workers.params.clone())

    run(SGD(), schedule, seen, **fresh_plan(schedule))
    apart = before[4].std(0) > 1e-12
    assert not apart[columns].any()
    assert apart.sum() >= 0.5 * LAYOUT.size


def test_messages_are_as_long_as_the_share() -> None:
    schedule = Schedule.partial(4)
    workers = run(SGD(), schedule, **fresh_plan(schedule))
    assert workers.bytes == workers.step * (LAYOUT.size // 4) * 8
    assert workers.messages == workers.step


def test_the_consensus_is_of_all_columns() -> None:
    schedule = Schedule.partial(4)
    workers = run(fedavgm(), schedule, **fresh_plan(schedule))
    plan, mean = made(schedule, **fresh_plan(schedule)), WEIGHTS @ workers.params
    settle_(workers, plan, fedavgm(), plainly=True)
    assert torch.allclose(workers.params, mean.expand_as(workers.params), rtol=0, atol=1e-12)


def test_what_is_put_back_is_what_was_taken() -> None:
    schedule = Schedule.partial(4)
    params = rows(4, LAYOUT.size, 1)
    workers = Workers.start(params.clone(), params[:, :0], LAYOUT, fedavgm(), 4)
    workers.remember_start_()
    plan = made(schedule, **fresh_plan(schedule))
    share = share_of(workers, plan, 1, 7)
    (copy,) = share.params
    copy += 1
    share.memory["anchor"] += 2
    share.note_common_()
    share.put_back_(workers)
    (columns,) = plan.fresh(7, 1)
    changed = (workers.params - params)[0] != 0
    assert changed.nonzero().flatten().tolist() == columns.tolist()
    assert torch.allclose(workers.memory["anchor"][0, columns], params[0, columns] + 2)
    assert torch.equal(workers.common[columns], workers.params[0, columns])
