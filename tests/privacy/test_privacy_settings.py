"""What cannot be promised is refused."""

from math import inf
from typing import Any

import pytest

from partavg.privacy.settings import Privacy


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"clip": 0.0}, "privacy.clip = 0.0 cannot be: use a norm above 0"),
        ({"clip": inf}, "not finite"),
        ({"noise": -1.0}, "privacy.noise = -1.0 is below 0"),
        ({"noise": 1e-6}, "privacy.noise = 1e-06 promises nothing"),
        ({"noise": 0.3, "local": True}, "at least 0.4"),
        ({"delta": 0.0}, "privacy.delta = 0.0 cannot be"),
        ({"delta": 1.0}, "privacy.delta = 1.0 cannot be"),
        ({"max_epsilon": 0.0}, "privacy.max_epsilon = 0.0 cannot be"),
        ({"max_epsilon": 3.0, "noise": 0.0}, "cannot be kept without noise"),
        ({"local": 1}, "neither yes nor no"),
        ({"quantile": 1.0}, "privacy.quantile = 1.0 cannot be"),
        ({"quantile": 0.5, "quantile_rate": 0.0}, "privacy.quantile_rate = 0.0 cannot be"),
        ({"quantile": 0.5, "quantile_noise": -1.0}, "privacy.quantile_noise = -1.0 cannot be"),
        ({"quantile": 0.5, "local": True}, "privacy.local does not protect"),
    ],
)
def test_settings_that_cannot_be_get_a_sentence(mistake: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Privacy(**{"clip": 1.0, "noise": 1.0, **mistake})


def test_a_clip_that_would_follow_noise_is_refused() -> None:
    """It would be beyond all numbers in a few cycles."""
    privacy = Privacy(clip=1.0, noise=1.0, quantile=0.5, quantile_noise=11.0)
    with pytest.raises(ValueError, match="more than the 10 clients that are expected"):
        privacy.noise_of_sums(10)
    assert privacy.noise_of_sums(11) > 1
