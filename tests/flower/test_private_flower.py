"""Private federated runs: nothing unclipped leaves a client, nothing is released for nothing."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from tests.flower.faults import fault
from tests.flower.federation import BASE, assert_equal, everything, split
from tests.flower.grid import FakeGrid
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Privacy, Simulation, build, checkpoint
from partavg.core.private import seeded_normal
from partavg.core.seeds import fold, seeded
from partavg.evaluation import unchanged
from partavg.flower import client_app, private
from partavg.flower.messages import ORDER, PART, REPLY
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings
from partavg.flower.state_folders import kept_in
from partavg.flower.transport import Transport
from partavg.privacy.accountant import Accountant
from partavg.privacy.ledger import LEDGER, Ledger
from partavg.privacy.secret import secret_clients, secret_normal
from partavg.report.page import write_page
from partavg.report.runs import gather

pytestmark = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)

CLIENTS = 6
SETTINGS: dict[str, Any] = {
    **BASE, "training.workers": CLIENTS, "solver.momentum": 0.9, "privacy.clip": 0.3,
    "privacy.noise": 3.0, "training.steps": 12, "flower.min_clients": 1,
}  # fmt: skip
DRAWN = {
    "participation.fraction": 0.5,
    "participation.every": 4,
    "participation.redistribution": "released",
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def shares() -> list[Tensor]:
    return [half for share in split() for half in share.chunk(2)]


def owned(context: Context) -> tuple[Tensor, Tensor]:
    x, y = everything()
    mine = shares()[int(context.node_config["partition-id"])]
    return x[mine], y[mine]


def federation(folder: Path, changes: dict[str, Any], **options: Any) -> FakeGrid:
    config = {**SETTINGS, "flower.folder": str(folder / "run"), **changes}
    nodes = {
        100 + index: {"partition-id": index, "state-dir": str(folder / f"node{index}")}
        for index in range(CLIENTS)
    }
    return FakeGrid(client_app(model, F.cross_entropy, owned, **options), config, nodes)


def server(grid: FakeGrid, *, seeded: bool = False, **changes: Any) -> FederatedRun:
    """The server's half; its noise is that of a simulation if it is `seeded`."""
    config = {**next(iter(grid.contexts.values())).run_config, **changes}
    chosen = Settings.read(config)
    agreement = chosen.agreement(model, F.cross_entropy, torch.device("cpu"))
    if seeded:
        plan = agreement.plan
        assert plan.private
        plan = replace(plan, private=replace(plan.private, draw=seeded_normal))
        agreement = replace(agreement, plan=plan)
    return FederatedRun(chosen, agreement, Transport(grid), everything(), unchanged)


def simulation(changes: dict[str, Any]) -> Simulation:
    """The simulation of the same settings, trained to its end."""
    chosen = Settings.read({**SETTINGS, **changes})
    config = chosen.config
    with seeded(fold(config.training.seed, "model"), torch.device("cpu")):
        start = model()
    made = Simulation(
        start, F.cross_entropy, everything(), shares(),
        schedule=build.schedule(config), lr=chosen.rate, batch=config.training.batch,
        solver=build.solver(config), privacy=build.privacy(config), engine="looped",
        participation=build.participation(config), local=config.averaging.local,
        seed=config.training.seed,
    )  # fmt: skip
    for _ in made.train(chosen.steps):
        pass
    return made


def order(message: Message) -> dict[str, Any]:
    return dict(message.content[ORDER])


def sent(reply: Message) -> Tensor:
    """The numbers in an answer."""
    if reply.has_error() or PART not in reply.content:
        return torch.empty(0)
    return torch.frombuffer(bytearray(reply.content[PART][PART].data), dtype=torch.float64)


CASES: dict[str, dict[str, Any]] = {
    "partial": {},
    "periodic": {"averaging.parts": 1},
    "two parts": {"averaging.parts": 2},
    "fedavgm": {"solver.name": "fedavgm", "solver.base.momentum": 0.5, "solver.momentum": 0.5},
    "adaptive": {"privacy.quantile": 0.5, "privacy.quantile_noise": 3.0},
    "personal": {"averaging.local": '["2.*"]'},
}
CASES["fedavgm"].pop("solver.base.momentum")


@pytest.mark.parametrize("who", ["all", "drawn"])
@pytest.mark.parametrize("name", CASES)
def test_a_private_federation_is_the_simulation(
    tmp_path: Path, name: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the noise and the clients of the simulation, which are no secret there."""
    changes = {**CASES[name], **(DRAWN if who == "drawn" else {})}
    expected = simulation(changes)
    plan = expected._current.plan
    cycles = iter(range(100))

    def as_simulated(clients: int, fraction: float) -> list[int]:
        step = 4 * next(cycles) + 1
        assert plan.participation
        return [int(c) for c in plan.participation(step)[plan.participation.present(step)]]

    monkeypatch.setattr(private, "secret_clients", as_simulated)
    run = server(federation(tmp_path, changes), seeded=True)
    rows = list(run)
    assert_equal(run.model(), expected.consensus())
    assert rows[-1]["epsilon"] == pytest.approx(expected.spent()["epsilon"])
    if name == "adaptive":
        clip = expected.workers.notes["clip"]
        assert run.server.progress.private["clip"] == pytest.approx(clip)
        assert clip != 0.3


@pytest.mark.parametrize("who", [{}, DRAWN])
@pytest.mark.parametrize("name", ["partial", "adaptive"])
def test_nothing_unclipped_leaves_a_client(tmp_path: Path, name: str, who: dict[str, Any]) -> None:
    """A spy on every message: changes within the clip, no counts, no loss, no model."""
    changes = {**CASES[name], **who, "privacy.clip": 0.01, "training.lr": 1.0}
    grid = federation(tmp_path, changes)
    run = server(grid)
    for _ in run:
        pass
    agreement, norms = run.server._agreement, []
    assert agreement.plan.private
    for _, message, reply in grid.log:
        told = dict(reply.content[REPLY])
        assert told["samples"] == 1, "none of them has one sample"
        if "turn" not in told:
            continue
        assert told["loss"] != told["loss"], "nothing of the loss"
        asked, numbers = order(message), sent(reply)
        if asked["send"] == "nothing":
            assert not len(numbers)
            continue
        assert asked["send"] == "part"
        part = agreement.plan.partition.sizes[asked["due"]]
        bits = numbers[part:]
        assert set(bits.tolist()) <= {-0.5, 0.0, 0.5}
        assert len(bits) == (name == "adaptive")
        clip = asked["clip"] * agreement.plan.private.shares[asked["due"]]
        norms.append(float(numbers[:part].norm()) / clip)
    assert max(norms) <= 1 + 1e-9
    assert sorted(norms)[len(norms) // 2] > 0.99, "with this clip nearly all are clipped"


def test_a_server_that_asks_for_more_gets_nothing(tmp_path: Path) -> None:
    grid = federation(tmp_path, {})

    def asks(client: int, message: Message) -> None:
        if ORDER in message.content and "send" in message.content[ORDER]:
            message.content[ORDER]["send"] = "model"

    grid.fault = asks
    monkey = {"flower.patience": 0.0, "flower.deadline": 5.0}
    run = server(grid, **monkey)
    with pytest.raises(RuntimeError, match="only clipped changes of a part leave a client"):
        next(iter(run))


def measured_on(context: Context) -> tuple[Tensor, Tensor]:
    x, y = everything()
    mine = shares()[int(context.node_config["partition-id"])]
    return x[mine][:3], y[mine][:3]


def test_clients_measure_what_was_released_and_nothing_of_their_own(tmp_path: Path) -> None:
    """On test samples, which are not protected, and the page says so."""
    changes = {**DRAWN, "metrics.clients_every": 4}
    grid = federation(tmp_path, changes, test=measured_on)
    run = server(grid)
    rows = list(run)
    scored = [row for row in rows if row["stage"] == "evaluation"]
    assert [row["step"] for row in scored] == [4, 8, 12]
    assert all("clients_accuracy" in row and "epsilon" in row for row in scored)
    assert all(row["delta"] == 1e-5 for row in rows if "epsilon" in row)
    assert not any({"clients", "away"} & row.keys() for row in scored)
    told = [reply.content["scores"] for _, _, reply in grid.log if "scores" in reply.content]
    assert len(told) == 3 * CLIENTS
    assert {key.partition(".")[0] for record in told for key in record} == {"samples", "average"}
    with pytest.raises(ValueError, match=r"metrics\.clients_every = 4 shows what"):
        Settings.read({**SETTINGS, **changes, "averaging.local": '["2.*"]'})


def test_clients_that_could_measure_are_not_asked_unless_settings_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = server(federation(tmp_path, {}, test=measured_on))
    run._test = None
    with caplog.at_level(logging.WARNING, "flwr"):
        rows = list(run)
    assert "set metrics.clients_every if they may" in caplog.text
    assert not any("accuracy" in row or "clients_accuracy" in row for row in rows)


def raw_changes(folder: Path, changes: dict[str, Any]) -> tuple[FederatedRun, list[Tensor]]:
    """A run, and all that clients sent in it."""
    grid = federation(folder, changes)
    said: list[Tensor] = []

    def after(client: int, reply: Message) -> Message:
        said.append(sent(reply))
        return reply

    grid.after = after
    run = server(grid)
    for _ in run:
        pass
    return run, [one for one in said if len(one)]


def tensors(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing.double().flatten()
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from tensors(value)


def test_the_server_keeps_no_message(tmp_path: Path) -> None:
    """What is on its disk after each exchange is what was released."""
    grid = federation(tmp_path, DRAWN)
    said: list[Tensor] = []

    def after(client: int, reply: Message) -> Message:
        said.append(sent(reply))
        return reply

    grid.after = after
    run, released, looked = server(grid), [], 0
    for row in run:
        released.append(run.server.mirror.params[0].clone())
        saved = checkpoint.load(run.folder.checkpoints)
        assert saved
        kept = list(tensors(saved["server"]))
        for message in (one for one in said if len(one)):
            first = float(message[0])
            assert not any(bool((one == first).any()) for one in kept if len(one))
            looked += 1
        if row["stage"] == "exchange":
            progress = run.server.progress
            spans = run.server._agreement.plan.partition.parts[progress.part]
            part = torch.cat([released[-1][a:b] for a, b in spans])
            assert progress.sums is not None
            assert torch.equal(progress.sums, part), "sums are what all may have"
    assert looked


def late_once(client: int, message: Message) -> str | None:
    return "late" if client == 2 and message.metadata.group_id == "3" else None


def test_a_sum_is_divided_by_those_expected_and_not_by_those_who_answered(tmp_path: Path) -> None:
    grid = federation(tmp_path, {"privacy.noise": 0.0, "averaging.parts": 1})
    grid.fault, said = late_once, dict[int, Tensor]()

    def after(client: int, reply: Message) -> Message:
        if len(numbers := sent(reply)):
            said[client] = numbers
        return reply

    grid.after = after
    run, counts = server(grid), []
    before = run.server.mirror.params[0].clone()
    order = torch.cat([torch.arange(a, b) for a, b in run.server._agreement.param_spans])
    for row in run:
        now = run.server.mirror.params[0].clone()
        if row["stage"] == "exchange":
            moved = torch.stack(list(said.values())).sum(0) / CLIENTS
            torch.testing.assert_close(now[order], before[order] + moved)
            counts.append(len(said))
        before = now
        said.clear()
    assert counts == [6, 6, 5]


@pytest.mark.parametrize("who", [{}, DRAWN])
def test_rows_and_summary_say_nothing_of_single_clients(
    tmp_path: Path, who: dict[str, Any]
) -> None:
    """Nor of those that did not answer; what clients measure is asked for by name, and a mean."""
    changes = {"metrics.clients_every": 4, **who}
    for asked in (changes, who):
        grid = federation(tmp_path / str(len(asked)), asked, test=measured_on)
        grid.fault = late_once
        run = server(grid)
        for _ in run:
            pass
        rows = list(run.folder.rows())
        summary = json.loads(run.folder.summary_path.read_text())
        single = {"clients", "away", "late", "sent", "received", "samples"}
        for row in (*rows, summary):
            assert not single & row.keys()
            assert not {"clients_accuracy_worst", "clients_accuracy_spread"} & row.keys()
        assert any("clients_accuracy" in row for row in rows) == (asked is changes)
        page = write_page(tmp_path / "page.html", gather([run.folder.path])).read_text()
        assert "Clients of" not in page


@pytest.mark.parametrize("who", [{}, DRAWN])
def test_all_hear_that_it_is_over(tmp_path: Path, who: dict[str, Any]) -> None:
    """And what they keep may go."""
    raw_changes(tmp_path, {**who, "training.steps": 8})
    kept = [one for folder in tmp_path.glob("node*") for one in kept_in(folder)]
    assert kept
    assert {one.state for one in kept} == {"finished"}


def test_where_clients_are_drawn_nothing_tells_who_took_part(tmp_path: Path) -> None:
    run, _ = raw_changes(tmp_path, DRAWN)
    rows = list(run.folder.rows())
    summary = json.loads(run.folder.summary_path.read_text())
    for row in rows:
        assert not {"clients", "away", "sent", "received", "bytes", "loss", "samples"} & row.keys()
        assert not {"discrepancy_due", "seconds"} & row.keys(), "who is slow is known by it"
    assert "clients" not in summary
    drawn = {stage["step"] for stage in rows if stage["stage"] == "redistribution"}
    assert drawn == {4, 8}


def test_noise_comes_from_the_operating_system_and_is_normal() -> None:
    about: Any = None
    drawn = secret_normal(about, "sum", torch.zeros(199_999, dtype=torch.float64))
    assert abs(float(drawn.mean())) < 5 / sqrt(2e5)
    assert float(drawn.var()) == pytest.approx(1, abs=5 * sqrt(2 / 2e5))
    assert float(drawn.pow(4).mean()) == pytest.approx(3, abs=5 * sqrt(96 / 2e5))
    assert abs(float((drawn[:-1] * drawn[1:]).mean())) < 5 / sqrt(2e5)
    assert not torch.equal(drawn[:9], secret_normal(about, "sum", drawn[:9]))
    assert secret_normal(about, "share", torch.zeros(())).shape == ()
    each = torch.zeros(20)
    for _ in range(2000):
        each[secret_clients(20, 0.3)] += 1
    assert float((each / 2000 - 0.3).abs().max()) < 5 * sqrt(0.21 / 2000)


def test_two_runs_draw_other_noise_and_other_clients(tmp_path: Path) -> None:
    """Whatever the seed, which all clients know."""
    one, two = (raw_changes(tmp_path / name, {**DRAWN, "training.steps": 4})[0] for name in "ab")
    assert not torch.equal(one.server.mirror.params, two.server.mirror.params)


class Killed(BaseException):
    """The server dies."""


POINTS = {
    "before it is written down": (Ledger, "charge", False),
    "after it was written down": (Ledger, "charge", True),
    "after its noise was drawn": (private.PrivateServer, "released", True),
    "before it is saved": (FederatedRun, "_save", False),
    "after it was saved": (FederatedRun, "_save", True),
    "after the metrics of it were written": (FederatedRun, "_said", False),
}
GROUP = "Privacy"


def dying(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, after: bool, at: int
) -> Callable[[], None]:
    """Kill the server in a call of a function, once; what lets it live again."""
    original, calls = getattr(owner, name), [0]

    def dies(*given: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == at and not after:
            raise Killed
        found = original(*given, **options)
        if calls[0] == at:
            raise Killed
        return found

    monkeypatch.setattr(owner, name, dies)
    return lambda: monkeypatch.setattr(owner, name, original)


@pytest.mark.parametrize(("at", "who"), [(3, {}), (6, DRAWN)])
@pytest.mark.parametrize("point", POINTS)
def test_nothing_is_released_twice_for_nothing(
    tmp_path: Path, point: str, at: int, who: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed anywhere, each noise that was drawn has a line of its own, on disk before it."""
    grid = federation(tmp_path, who)
    drawn: list[int] = []

    def counted(about: Any, what: str, like: Tensor) -> Tensor:
        lines = (tmp_path / "run" / LEDGER).read_text().splitlines()
        drawn.append(about.step)
        assert len(lines) - 1 >= len(drawn), "written down before"
        return secret_normal(about, what, like)

    monkeypatch.setattr("partavg.flower.settings.secret_normal", counted)
    owner, name, after = POINTS[point]
    lives = dying(monkeypatch, owner, name, after=after, at=at)
    with pytest.raises(Killed):
        for _ in server(grid):
            pass
    lives()
    run = server(grid, **{"flower.resume": True})
    for _ in run:
        pass
    lines = (tmp_path / "run" / LEDGER).read_text().splitlines()[1:]
    spent = [json.loads(line) for line in lines]
    assert len(drawn) <= len(spent) <= 13
    again = len(spent) - 12
    assert again >= len(drawn) - 12
    sizes = {1.0: 2, 1.25: 1} if again else {1.0: 3}
    fraction = 0.5 if who else 1.0
    wanted = Accountant(3.0, fraction).epsilon_of(sizes)
    summary = json.loads(run.folder.summary_path.read_text())
    assert summary["epsilon"] == pytest.approx(wanted, rel=0.05 if again else 1e-6)
    assert (summary["epsilon"] > Accountant(3.0, fraction).epsilon(3) + 1e-9) == bool(again)


@fault(GROUP, "the server is killed after it wrote a sum down, before that is saved")
def test_a_sum_that_is_made_again_is_paid_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    grid = federation(tmp_path, {})
    lives = dying(monkeypatch, FederatedRun, "_save", after=False, at=4)
    with pytest.raises(Killed):
        for _ in server(grid):
            pass
    lives()
    run = server(grid, **{"flower.resume": True})
    for _ in run:
        pass
    lines = (tmp_path / "run" / LEDGER).read_text().splitlines()
    assert len(lines) == 14
    assert run._ledger is not None
    more, whole = run._ledger.epsilon(), Accountant(3.0).epsilon(3)
    assert more is not None
    assert more > whole
    return "other noise is drawn, and ε counts that part of the cycle twice"


@fault(GROUP, "the server is killed after a sum was saved, before clients hear of it")
def test_a_sum_that_was_saved_is_paid_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    grid = federation(tmp_path, {})
    lives = dying(monkeypatch, FederatedRun, "_save", after=True, at=4)
    with pytest.raises(Killed):
        for _ in server(grid):
            pass
    lives()
    saved = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert saved
    sums = saved["server"]["progress"]["sums"]
    run = server(grid, **{"flower.resume": True})
    assert run.server.progress.sums is not None
    assert torch.equal(run.server.progress.sums, sums)
    for _ in run:
        pass
    assert run._ledger is not None
    assert run._ledger.epsilon() == pytest.approx(Accountant(3.0).epsilon(3))
    return "the same bytes are released when it resumes; ε is as without the stop"


@fault(GROUP, "a client does not clip")
def test_the_server_clips_again(tmp_path: Path) -> str:
    ends = []
    for factor in (1.0, 1e6):
        grid = federation(tmp_path / str(factor), {"privacy.noise": 0.0, "privacy.clip": 0.01})

        def longer(client: int, reply: Message, factor: float = factor) -> Message:
            if client == 0 and len(sent(reply)):
                array = reply.content[PART][PART]
                data = (sent(reply) * factor).numpy().tobytes()
                array.data = data
            return reply

        grid.after = longer
        run = server(grid)
        start = run.server.mirror.params[0].clone()
        for _ in run:
            pass
        ends.append(run.server.mirror.params[0] - start)
    assert float(ends[1].norm()) <= 3 * 0.01 * (1 + 1e-9), "a cycle moves by the clip at most"
    return "the server clips again: a cycle still moves the model by no more than the clip"


@fault(GROUP, "a client sends 1e30 where each adds its own noise (privacy.local)")
def test_with_local_noise_the_server_cuts_what_no_noise_makes(tmp_path: Path) -> str:
    changes = {"privacy.local": True, "privacy.noise": 2.0, "averaging.parts": 1}
    grid = federation(tmp_path, {**changes, "training.steps": 4})

    def lies(client: int, reply: Message) -> Message:
        if client == 0 and len(sent(reply)):
            data = torch.full_like(sent(reply), 1e30).numpy().tobytes()
            reply.content[PART][PART].data = data
        return reply

    grid.after = lies
    run = server(grid)
    start = run.server.mirror.params[0].clone()
    for _ in run:
        pass
    width = len(start)
    longest = 0.3 * (1 + 2.0 * (sqrt(width) + 8))
    assert float((run.server.mirror.params[0] - start).norm()) <= longest
    return "it is cut to the length that a clipped change with its noise can have"


@fault(GROUP, "a client shares its loss (share_loss=True)")
def test_a_client_that_would_tell_its_loss_does_not_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> str:
    grid = federation(tmp_path, {"flower.wait": 0.0, "flower.patience": 0.2}, share_loss=True)
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(RuntimeError, match="must"):
        for _ in server(grid):
            pass
    assert "share_loss tells the server what privacy does not protect" in caplog.text
    return (
        "it refuses to join: “share_loss tells the server what privacy does not protect: leave it "
        "out of client_app, or privacy out of the run config”"
    )


@fault(GROUP, "the next sum would cost more than privacy.max_epsilon")
def test_a_run_ends_before_it_spends_too_much(tmp_path: Path) -> str:
    most = Accountant(3.0).epsilon(2) + 0.01
    run = server(federation(tmp_path, {"privacy.max_epsilon": most}))
    rows = list(run)
    summary = json.loads(run.folder.summary_path.read_text())
    assert rows[-1]["step"] == 8
    assert rows[-1]["stage"] == "end"
    assert (summary["stopped_at"], summary["stopped_by"]) == (8, "max_epsilon")
    assert summary["epsilon"] <= most
    assert run.folder.model_path.exists()
    return "the run ends before that, with a model, a report and stopped_by = max_epsilon"


@fault(GROUP, "the ledger is gone, or says another promise, and the run is resumed")
def test_without_its_ledger_a_run_does_not_go_on(tmp_path: Path) -> str:
    grid = federation(tmp_path, {})
    run = server(grid)
    rows = iter(run)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    ledger = tmp_path / "run" / LEDGER
    text = ledger.read_text()
    said = []
    for other in (None, text.replace("3.0", "4.0"), "nonsense\n", text.replace("cycle", "c")):
        ledger.unlink()
        if other is not None:
            ledger.write_text(other)
        with pytest.raises(ValueError, match="begin another run") as error:
            server(grid, **{"flower.resume": True})
        said.append(str(error.value))
        ledger.write_text(text)
    ledger.write_text(text + '{"cycle": 0, "sh')  # torn: nothing was released after it
    again = server(grid, **{"flower.resume": True})
    assert ledger.read_text() == text
    for _ in again:
        pass
    assert "without it nobody knows what was spent" in said[0]
    return "refused: without it nobody knows what was spent"


def test_a_last_sum_that_is_made_again_pays_for_its_bits_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = federation(tmp_path, CASES["adaptive"])
    lives = dying(monkeypatch, FederatedRun, "_save", after=False, at=5)
    with pytest.raises(Killed):
        for _ in server(grid):
            pass
    lives()
    for _ in server(grid, **{"flower.resume": True}):
        pass
    lines = (tmp_path / "run" / LEDGER).read_text().splitlines()[1:]
    costs = [json.loads(line)["share"] for line in lines]
    again, bits = costs[3], (2 * 3.0) ** -2
    assert costs[4] == again
    assert sum(costs) == pytest.approx(3 + again)
    sums = Privacy(clip=0.3, noise=3.0, quantile=0.5, quantile_noise=3.0).noise_of_sums(CLIENTS)
    size = server_shares(grid)[0] ** 2
    assert again / 3.0**2 == pytest.approx(size / sums**2 + bits)


def server_shares(grid: FakeGrid) -> tuple[float, ...]:
    chosen = Settings.read({**next(iter(grid.contexts.values())).run_config})
    private = chosen.agreement(model, F.cross_entropy, torch.device("cpu")).plan.private
    assert private
    return private.shares


def stopped_after(folder: Path, rows: int) -> FakeGrid:
    """A run that was stopped after so many rows."""
    grid = federation(folder, {})
    run = iter(server(grid))
    for _ in range(rows):
        next(run)
    run.close()  # type: ignore[attr-defined]
    return grid


@fault(GROUP, "the ledger is rolled back, or another run's, and the run is resumed")
def test_a_ledger_that_is_older_than_the_checkpoint_is_refused(tmp_path: Path) -> str:
    grid, ledger = stopped_after(tmp_path, 3), tmp_path / "run" / LEDGER
    text = ledger.read_text()
    anothers = text.replace('"cycle": 0', '"cycle": 1')
    first, *sums = text.splitlines(keepends=True)
    for older in (first, first + sums[0], first + "".join(sums[1:]), anothers):
        ledger.write_text(older)
        with pytest.raises(ValueError, match=r"does not say all that was spent; .*begin another"):
            server(grid, **{"flower.resume": True})
    ledger.write_text(text + sums[-1])  # a sum that was written down, and not yet saved
    server(grid, **{"flower.resume": True})
    return "refused: it does not say all that was spent"


@fault(GROUP, "the checkpoints of a run are gone and its ledger is not")
def test_a_ledger_is_not_thrown_away_with_the_checkpoints(tmp_path: Path) -> str:
    grid = stopped_after(tmp_path, 2)
    folder = tmp_path / "run"
    text = (folder / LEDGER).read_text()
    rmtree(folder / "checkpoints")
    for gone in ("metrics.jsonl", "config.toml"):
        with pytest.raises(ValueError, match=r"says that something was spent.*begin another run"):
            server(grid, **{"flower.resume": True})
        assert (folder / LEDGER).read_text() == text
        (folder / gone).unlink()
    return "refused: nobody would count what was spent"


def test_a_line_that_is_not_whole_on_disk_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / LEDGER, Accountant(3.0), None)
    ledger.begin()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, text: whole(file, text[:5]))
    with pytest.raises(OSError, match="make room"):
        ledger.charge(0, 0.25)


def test_other_privacy_settings_are_refused_and_a_larger_budget_is_not(tmp_path: Path) -> None:
    grid = federation(tmp_path, {"privacy.max_epsilon": 2.0})
    rows = iter(server(grid))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    for key, value in (("noise", 1.0), ("clip", 1.0), ("delta", 1e-6)):
        with pytest.raises(ValueError, match=f"privacy.{key}"):
            server(grid, **{"flower.resume": True, f"privacy.{key}": value})
    run = server(grid, **{"flower.resume": True, "privacy.max_epsilon": 50.0})
    assert [row["step"] for row in run][-1] == 12


def test_local_noise_is_added_before_a_message_leaves_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server adds none; a message that is asked for again is the same to the bit."""
    changes = {"privacy.local": True, "privacy.noise": 50.0, "averaging.parts": 1}
    grid = federation(tmp_path, changes)
    answers: dict[tuple[int, str], list[Tensor]] = {}
    replies = []

    def after(client: int, reply: Message) -> Message:
        numbers = sent(reply)
        if len(numbers):
            replies.append(numbers)
            key = client, reply.metadata.group_id
            answers.setdefault(key, []).append(numbers)
        return reply

    grid.after = after
    run = server(grid)
    lives = dying(monkeypatch, FederatedRun, "_save", after=False, at=3)
    with pytest.raises(Killed):
        for _ in run:
            pass
    lives()
    run = server(grid, **{"flower.resume": True})
    before = run.server.mirror.params[0].clone()
    order = torch.cat([torch.arange(a, b) for a, b in run.server._agreement.param_spans])
    for row in run:
        now = run.server.mirror.params[0].clone()
        if row["stage"] == "exchange":
            moved = torch.stack(replies[-CLIENTS:]).mean(0)
            torch.testing.assert_close(now[order], before[order] + moved)
        before = now
    noise = torch.stack(replies).flatten()
    assert float(noise.std()) == pytest.approx(50 * 0.3, rel=0.1)
    twice = [both for both in answers.values() if len(both) > 1]
    assert len(twice) == CLIENTS
    assert all(torch.equal(*both) for both in twice)
    summary = json.loads(run.folder.summary_path.read_text())
    assert "epsilon" not in summary, "what is promised is another thing, and called so"
    assert summary["epsilon_local"] == pytest.approx(Accountant(25.0).epsilon_of({1.0: 2, 2.0: 1}))


def test_settings_of_a_private_run_are_those_of_a_recipe() -> None:
    found = Settings.read({**SETTINGS, "privacy.max_epsilon": 3.0})
    assert build.privacy(found.config) == Privacy(clip=0.3, noise=3.0, max_epsilon=3.0)
    again = Settings.read({**SETTINGS, "privacy.max_epsilon": 3.0, "training.lr": 0.1})
    assert "[privacy]\nclip = 0.3\nnoise = 3.0\nmax_epsilon = 3.0" in again.dump()


REFUSED = {
    "averaging.weights": ("samples", "averaging.weights = 'samples'"),
    "solver.name": ("scaffold", r"solver\.name = 'scaffold' sends more than its parameters"),
    "metrics.discrepancy_every": (1, "metrics.discrepancy_every = 1 shows"),
    "flower.first": (2, "flower.first = 2 lets the answer of one client push out that of another"),
    "privacy.delta": (0.5, "is not below 1 / 6 clients"),
    "participation.redistribution": ("average", "redistribution = 'average'"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_break_it_is_refused_before_anything_is_sent(key: str) -> None:
    value, said = REFUSED[key]
    settings = {**SETTINGS, **(DRAWN if "redistribution" in key else {}), key: value}
    if key == "solver.name":
        del settings["solver.momentum"]
    with pytest.raises(ValueError, match=said):
        Settings.read(settings)


def test_clients_with_another_clip_do_not_join(tmp_path: Path) -> None:
    one, two = (
        Settings.read({**SETTINGS, "privacy.clip": clip}).agreement(
            model, F.cross_entropy, torch.device("cpu")
        )
        for clip in (0.3, 0.4)
    )
    assert one.digest() != two.digest()
