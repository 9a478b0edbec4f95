"""Personal parameters in a federation: they never leave their client."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.flower.federation import BASE, CLIENTS, PERIODIC, SOLVERS, federation, server, simulation
from tests.outside import median, registered

from partavg import checkpoint
from partavg.backends.client_models import own_columns
from partavg.flower.settings import Settings

HEAD, NORM = '["4.*"]', '["1.*"]'
MOMENTUM = {"solver.momentum": 0.9}
CASES: dict[str, dict[str, Any]] = {
    "head": {"averaging.local": HEAD, **MOMENTUM},
    "norm": {"averaging.local": NORM, **PERIODIC, **MOMENTUM},
    "head and norm": {"averaging.local": '["1.*", "4.*"]', "averaging.buffers": "every"},
    **{f"head, {name}": {"averaging.local": HEAD, **keys} for name, keys in SOLVERS.items()},
    "steps left": {"averaging.local": NORM, "averaging.parts": 2, "training.steps": 11},
    **{
        redistribution: {
            "averaging.local": HEAD, "averaging.buffers": "every", "averaging.parts": 2,
            "participation.fraction": 0.67, "participation.every": 6, "training.steps": 18,
            "participation.redistribution": redistribution,
        }
        for redistribution in ("permute", "average")
    },
}  # fmt: skip


def rows_of(folder: Path, client: int) -> dict[str, Any]:
    """What a client kept."""
    (kept,) = (folder / f"node{client}" / "test" / f"client-{client}").iterdir()
    saved = checkpoint.load(kept)
    assert saved
    return saved["workers"]


@pytest.mark.parametrize("case", CASES)
def test_a_federation_is_the_simulation(tmp_path: Path, case: str) -> None:
    """In what is shared, at the end, and in what each client has of its own."""
    changes = CASES[case]
    with registered():
        run = server(federation(tmp_path, changes))
        rows = list(run)
        made = simulation(changes, local=Settings.read({**BASE, **changes}).config.averaging.local)
    shared = made.partition.owners() < len(made.partition.parts)
    common = torch.cat([p.detach().reshape(-1) for p in made.consensus().parameters()])
    torch.testing.assert_close(
        run.server.mirror.params[0, shared], common[shared], rtol=0, atol=1e-9
    )
    own = own_columns(made.workers, made._current.plan, "params")
    seen = {client for row in rows for client in row["clients"]}
    for client in seen:
        mine = rows_of(tmp_path, client)["params"][0, ~shared]
        torch.testing.assert_close(mine, own[client], rtol=0, atol=1e-9)
    if len(seen) == CLIENTS:
        assert own.std(0).min() > 1e-6, "clients differ"
    assert "accuracy" not in rows[-1], "the server has nobody's model"


@pytest.mark.parametrize("parts", [1, 4])
def test_an_aggregate_sees_what_is_shared(tmp_path: Path, parts: int) -> None:
    changes = {"averaging.local": HEAD, "averaging.parts": parts, "averaging.buffers": "every"}
    run = server(federation(tmp_path, changes), median)
    for _ in run:
        pass
    made = simulation(changes, local=["4.*"], aggregate=median)
    shared = made.partition.owners() < len(made.partition.parts)
    common = torch.cat([p.detach().reshape(-1) for p in made.consensus().parameters()])
    torch.testing.assert_close(
        run.server.mirror.params[0, shared], common[shared], rtol=0, atol=1e-9
    )


def test_they_cost_nothing(tmp_path: Path) -> None:
    sent, received = {}, {}
    for name, changes in {"all": {}, "some": {"averaging.local": HEAD}}.items():
        *_, row = server(federation(tmp_path / name, {**PERIODIC, **changes}))
        sent[name], received[name] = row["sent"]["0"], row["received"]["0"]
    head, headers = 8 * (8 * 2 + 2), 20
    for each in (sent, received):  # three averages, and one model at the start or at the end
        assert 4 * head <= each["all"] - each["some"] < 4 * head + headers
