"""ε is dp-accounting's, of the right events; nothing is spent that is not counted."""

import sys
from math import inf, sqrt
from typing import Any

import pytest

from partavg.core.schedule import Schedule
from partavg.privacy.accountant import Accountant, check_installed, noise_for
from partavg.privacy.settings import Privacy
from partavg.privacy.spending import Spending

dp_accounting = pytest.importorskip("dp_accounting")


def counted(event: Any, times: int) -> float:
    """What dp-accounting says itself, of events as it describes them."""
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(event, times)
    return float(accountant.get_epsilon(1e-5))


def test_a_cycle_over_all_parts_costs_what_the_whole_model_costs() -> None:
    """Numbers measured once with dp-accounting 0.6: z = 1.1, P = 4, δ = 1e-5."""
    assert Accountant(1.1).epsilon(1) == pytest.approx(3.9213, abs=1e-4)
    assert Accountant(1.1).epsilon(50) == pytest.approx(47.31, abs=5e-3)
    assert Accountant(1.1, 0.1).epsilon(50) == pytest.approx(4.30, abs=5e-3)
    # Each part is clipped to C / √P, so that its own multiplier is √P z.
    assert Accountant(1.1 * sqrt(4)).epsilon(4) == Accountant(1.1).epsilon(1)
    # What it would be if every part were clipped to C, or clients drawn anew for every part.
    assert Accountant(1.1).epsilon(4) == pytest.approx(8.90, abs=5e-3)
    assert Accountant(2.2, 0.1).epsilon(200) == pytest.approx(2.96, abs=5e-3)


@pytest.mark.parametrize(("noise", "fraction", "cycles"), [(1.1, 1.0, 50), (0.8, 0.05, 30)])
def test_it_says_what_dp_accounting_says(noise: float, fraction: float, cycles: int) -> None:
    event = dp_accounting.GaussianDpEvent(noise)
    if fraction < 1:
        event = dp_accounting.PoissonSampledDpEvent(fraction, event)
    assert Accountant(noise, fraction).epsilon(cycles) == pytest.approx(
        counted(event, cycles), rel=1e-4
    )


def test_without_sampling_it_is_the_closed_form() -> None:
    found = dp_accounting.get_epsilon_gaussian(3.0 / sqrt(7), 1e-6)
    assert Accountant(3.0, delta=1e-6).epsilon(7) == found


def test_a_sum_released_again_makes_its_cycle_larger() -> None:
    """To the same clients: sampled once, and not a cycle of its own."""
    whole = Accountant(2.0, 0.1)
    assert whole.epsilon_of({1.0: 9, 2.0: 1}) > whole.epsilon_of({1.0: 11})
    assert whole.epsilon_of({1.0: 10, 0.0: 3}) == whole.epsilon(10)
    twice = Accountant(2.0 / sqrt(2), 0.1)
    assert whole.epsilon_of({2.0: 5}) == twice.epsilon(5)
    alone = Accountant(2.0)
    assert alone.epsilon_of({1.0: 3, 1.25: 4}) == alone.epsilon(8)


def test_the_most_cycles_are_the_most() -> None:
    for accountant in (Accountant(4.0), Accountant(1.1, 0.1)):
        most = accountant.most_cycles(8.0)
        assert accountant.epsilon(most) <= 8.0 < accountant.epsilon(most + 1)
    assert Accountant(1.0).most_cycles(0.1) == 0
    assert Accountant(0.0).epsilon(1) == inf
    assert Accountant(1.0).epsilon(0) == 0


def test_the_noise_for_an_epsilon_is_enough_and_hardly_more() -> None:
    for fraction in (1.0, 0.2):
        noise = noise_for(2.0, 10, fraction=fraction)
        assert Accountant(noise, fraction).epsilon(10) <= 2.0
        assert Accountant(0.98 * noise, fraction).epsilon(10) > 2.0
    assert noise_for(900.0, 1) == noise_for(900.0, 1, fraction=0.5) == 0.2, (
        "with less it takes long"
    )
    for mistake in (
        {"epsilon": 0.0},
        {"fraction": 0.0},
        {"delta": 1.0},
        {"cycles": 0},
        {"cycles": 10**30},
    ):
        with pytest.raises(ValueError, match="use"):
            noise_for(**{"epsilon": 1.0, "cycles": 5, **mistake})


def spending(schedule: Schedule, fraction: float = 1.0, **options: Any) -> Spending:
    return Spending(Privacy(**{"clip": 1.0, "noise": 2.0, **options}), fraction, schedule)


def test_a_cycle_is_spent_with_its_first_release() -> None:
    partial, periodic = spending(Schedule.partial(4)), spending(Schedule.periodic(4))
    late = spending(Schedule(4, offsets=(3, 4)))
    assert [partial.cycles(step) for step in range(6)] == [0, 1, 1, 1, 1, 2]
    assert [periodic.cycles(step) for step in range(6)] == [0, 0, 0, 0, 1, 1]
    assert [late.cycles(step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert periodic.epsilon(3) == 0
    assert spending(Schedule.periodic(4), noise=0.0).epsilon(8) is None, "nothing is promised"


def test_the_last_step_is_the_last_that_is_allowed() -> None:
    made = spending(Schedule.partial(4), 0.2, max_epsilon=2.0)
    last = made.last_step(10**6)
    assert last % 4 == 0
    assert (made.epsilon(last) or 9) <= 2.0 < (made.epsilon(last + 1) or 0)
    assert made.last_step(5) == 5
    with pytest.raises(ValueError, match="below what the first cycle costs"):
        spending(Schedule.partial(4), max_epsilon=0.1).last_step(8)


def test_local_noise_hides_each_client_in_its_own_noise_only() -> None:
    """Two messages may be 2 C apart, and drawing clients by chance hides nobody."""
    made = spending(Schedule.partial(4), 0.1, local=True)
    assert made.accountant == Accountant(1.0, 1.0)


def test_bits_and_sums_share_what_a_cycle_costs() -> None:
    """z⁻² = z_Δ⁻² + (2 σ_b)⁻², Andrew et al., theorem 1."""
    privacy = Privacy(clip=1.0, noise=1.1, quantile=0.5)
    sums, bits = privacy.noise_of_sums(100), privacy.bit_noise(100)
    assert bits == 5
    assert sums**-2 + (2 * bits) ** -2 == pytest.approx(1.1**-2)
    together = Accountant(sums).epsilon_of({1.0: 1, (sums / (2 * bits)) ** 2: 1})
    assert together == pytest.approx(Accountant(1.1).epsilon(1), rel=1e-9)
    with pytest.raises(ValueError, match="leaves nothing of"):
        privacy.noise_of_sums(10)


def test_without_the_package_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install 'partavg\[privacy\]'"):
        check_installed()
