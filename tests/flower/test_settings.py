"""Settings of an app: the keys of a recipe, checked alike."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.flower.federation import BASE, federation, model, server
from tests.outside import median, plain_sum, registered
from torch import nn
from torch.nn import functional as F

from partavg import Aggregate, build
from partavg.core.aggregate import weighted_sum
from partavg.flower.aggregation import aggregated
from partavg.flower.protocol import encode
from partavg.flower.settings import Settings

TURNS = {"participation.fraction": 0.67, "participation.every": 4}
LISTENING = {**TURNS, "participation.redistribution": "listen"}


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
        ({"averaging.buffers": "frozen"}, "cannot be used with Flower"),
        ({"averaging.mix": 0.5}, "averaging.mix and .* cannot be used with Flower"),
        ({"averaging.wire": "int8"}, "averaging.wire = 'int8' cannot be used with Flower"),
        ({"averaging.offsets": "[0, 1, 2, 3]"}, "averaging.offsets, .* cannot be used with Flower"),
        ({"averaging.partition": "fresh"}, "'fresh' cannot be used with Flower"),
        ({"training.scale": 0.5}, "need all samples in one place: use training.steps"),
        ({"lr_schedule.unit": "epochs"}, "the server does not know how long an epoch"),
        ({**TURNS, "averaging.parts": 1, "participation.every": 6}, "is not a multiple of the 4"),
        (
            {**TURNS, "participation.redistribution": "none", "solver.name": "fedprox"},
            "use permute or average",
        ),
        ({**LISTENING, "solver.name": "vrl_sgd"}, "solver.name = 'vrl_sgd' remembers averages"),
        (
            {**LISTENING, "solver.momentum": 0.9, "solver.momentum_at_averaging": "reset"},
            "solver.name = 'sgd' remembers averages for each worker",
        ),
        ({**LISTENING, "averaging.parts": 2, "participation.every": 6}, "no multiple of the inter"),
        (
            {**TURNS, "participation.rolling": True, "participation.redistribution": "average"},
            "rolling draws come after every cycle",
        ),
        (
            {
                **TURNS,
                "participation.redistribution": "average",
                "solver.name": "diloco",
                "solver.keep": 0.5,
            },
            "keeps clients apart, and participation.redistribution = 'average' makes them the same",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:keep = 0.5:DeprecationWarning")
def test_mistakes_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        Settings.read({**BASE, **changes})


def test_listening_is_refused_with_an_aggregate_only_where_clients_come_and_go() -> None:
    def made(**changes: Any) -> Any:
        settings = Settings.read({**BASE, **changes})
        return settings.agreement(model, F.cross_entropy, torch.device("cpu"), median)

    with pytest.raises(ValueError, match=r"'listen' does not go with an aggregate other than"):
        made(**LISTENING)
    everybody = {**LISTENING, "participation.fraction": 1.0, "solver.name": "vrl_sgd"}
    assert made(**everybody).plan.participation.moves is False


def test_whole_numbers_that_halves_cannot_count_are_refused() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)).bfloat16()

    for buffers in ("part", "every"):
        settings = Settings.read({**BASE, "averaging.buffers": buffers})
        with pytest.raises(ValueError, match=r"cannot be counted in messages of torch.bfloat16"):
            settings.agreement(model, F.mse_loss, torch.device("cpu"))
    settings = Settings.read({**BASE, "averaging.buffers": "local"})
    assert settings.agreement(model, F.mse_loss, torch.device("cpu")).buffer_spans == ()


def test_models_that_differ_in_whole_numbers_do_not_agree() -> None:
    def model(number: int) -> nn.Module:
        made = nn.Linear(2, 2)
        made.register_buffer("table", torch.tensor([number]))
        return made

    settings, device = Settings.read({**BASE, "averaging.parts": 1}), torch.device("cpu")
    one, two, same = (
        settings.agreement(lambda n=n: model(n), F.mse_loss, device).digest() for n in (1, 2, 1)
    )
    assert one == same != two


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("aggregate", [weighted_sum, plain_sum])
def test_messages_of_halves_are_summed_in_float32(dtype: torch.dtype, aggregate: Aggregate) -> None:
    """Seven equal messages stay what they are; others are rounded once."""
    settings = Settings.read({**BASE, "averaging.parts": 1})
    agreement = settings.agreement(
        lambda: nn.Linear(30, 2).to(dtype), F.mse_loss, torch.device("cpu"), aggregate
    )
    mirror, sections = agreement.start(), agreement.sections("part", 0)
    message, weights = encode(mirror, agreement, sections), dict.fromkeys(range(7), 1 / 7)
    assert message.dtype == dtype
    equal = dict.fromkeys(weights, message)
    assert torch.equal(aggregated(equal, weights, agreement, mirror, sections, 1), message)
    others = {client: (message * (1 + client)).to(dtype) for client in weights}
    mean = torch.stack([each.double() for each in others.values()]).mean(0)
    found = aggregated(others, weights, agreement, mirror, sections, 1)
    assert found.dtype == dtype
    torch.testing.assert_close(found, mean.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    assert (found == mean.float().to(dtype)).double().mean() > 0.95


def test_metrics_of_outputs_are_measured_by_the_server(tmp_path: Path) -> None:
    asked = {"metrics.extra": '["perplexity"]'}
    rows = list(server(federation(tmp_path, asked)))
    assert rows[-1]["perplexity"] == pytest.approx(math.exp(rows[-1]["test_loss"]))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["perplexity"] == rows[-1]["perplexity"]
    assert "perplexity" in (tmp_path / "run" / "metrics.json").read_text()
    with pytest.raises(ValueError, match="metric 'mae' cannot be measured: outputs"):
        server(federation(tmp_path / "other", {"metrics.extra": '["mae"]'}))


def test_metrics_of_simulations_are_refused() -> None:
    with registered(), pytest.raises(ValueError, match="cannot be measured"):
        Settings.read({**BASE, "metrics.extra": '["largest"]'})
