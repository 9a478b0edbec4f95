"""Settings of an app: the keys of a recipe, checked alike."""

from typing import Any

import pytest
from tests.flower.federation import BASE
from tests.outside import registered

from partavg import build
from partavg.flower.settings import Settings

TURNS = {"participation.fraction": 0.67, "participation.every": 4}


def test_interval_and_parts_make_local_steps() -> None:
    settings = Settings.read({**BASE, "averaging.interval": 12, "averaging.parts": 4})
    assert settings.local_steps == 3
    given = {k: v for k, v in BASE.items() if k != "averaging.interval"}
    settings = Settings.read({**given, "averaging.parts": 4, "flower.local_steps": 5})
    assert build.schedule(settings.config).interval == 20


def test_what_is_the_users_own_is_left_alone() -> None:
    assert Settings.read({**BASE, "app.path": "x", "path": "y"}) == Settings.read(BASE)


def test_the_text_of_the_settings_names_what_decides_the_run() -> None:
    text = Settings.read(BASE).dump()
    assert "[averaging]\ninterval = 4" in text
    assert 'job = "test"' in text
    assert "[data]" not in text


def test_names_can_be_those_of_a_module() -> None:
    mine = {"solver.name": "tests.outside:FedDyn", "solver.alpha": 0.3}
    settings = Settings.read({**BASE, **mine, "averaging.partition": "tests.outside:thirds"})
    assert build.solver(settings.config).alpha == 0.3
    assert 'name = "tests.outside:FedDyn"' in settings.dump()
    with pytest.raises(ValueError, match="has no 'FedDin': did you mean 'FedDyn'"):
        Settings.read({**BASE, "solver.name": "tests.outside:FedDin"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"averaging.parts": 3}, "interval 4 cannot be cut into 3 parts"),
        ({"averaging.part": 2}, "unknown key 'averaging.part': did you mean 'averaging.parts'"),
        (
            {"averging.parts": 2},
            "section 'averging' of 'averging.parts' is not known: use training",
        ),
        ({"flower.jobs": "x"}, "unknown key 'flower.jobs': did you mean 'flower.job'"),
        ({"flower.job": "../../etc"}, "names files on every node: use up to 64 letters"),
        ({"flower.deadline": 0.0}, "flower.deadline = 0.0: input should be greater than 0"),
        ({"flower.catch_up": "all"}, "flower.catch_up = \"all\": input should be 'parts' or"),
        ({"flower.min_clients": 4}, "is more than the 3 clients that are active: use 1 to 3"),
        ({"flower.local_steps": 3}, "make an interval of 12, and averaging.interval = 4"),
        ({"solver.name": "sdg"}, "solver.name = 'sdg' is not known: did you mean 'sgd'"),
        ({"solver.momentum": "high"}, "solver.momentum = "),
        ({"averaging.delay": 1}, "cannot be used with Flower"),
        ({"averaging.buffers": "recompute"}, "cannot be used with Flower"),
        ({"training.scale": 0.5}, "need all samples in one place: use training.steps"),
        ({"lr_schedule.unit": "epochs"}, "the server does not know how long an epoch"),
        ({**TURNS, "averaging.parts": 1, "participation.every": 6}, "is not a multiple of the 4"),
        (
            {**TURNS, "participation.redistribution": "none", "solver.name": "fedprox"},
            "use permute or average",
        ),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        Settings.read({**BASE, **changes})


def test_metrics_of_simulations_are_refused() -> None:
    with registered(), pytest.raises(ValueError, match="cannot be measured"):
        Settings.read({**BASE, "metrics.extra": '["largest"]'})
