"""Private simulations: what is released is clipped and noised, and nothing else gets out."""

import json
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.backends.test_ranks import distance
from tests.outside import median
from tests.together import together
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg import SGD, Participation, Privacy, Schedule, Simulation
from partavg.backends.ranks import Ranks
from partavg.core.pace import Fixed
from partavg.core.poisson import Poisson
from partavg.core.private import clip_, part_shares
from partavg.data.samples import Samples
from partavg.report.page import write_page
from partavg.report.runs import gather
from partavg.solvers import SOLVERS

CLIENTS, PLAIN = 12, Privacy(clip=1e9, noise=0.0)
DRAWN = Participation(CLIENTS, 4, 4, "released")

needs_accountant = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)


def task(clients: int = CLIENTS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10 * clients, 5, generator=generator).double()
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def simulation(**options: Any) -> Simulation:
    torch.manual_seed(0)
    samples = options.pop("samples", task())
    layers = [nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)]
    model = options.pop("model", nn.Sequential(*layers).double())
    given = {
        "schedule": Schedule.partial(4), "lr": 0.3, "batch": 4, "engine": "looped",
        "solver": SGD(0.9), "privacy": Privacy(clip=0.5, noise=0.0), **options,
    }  # fmt: skip
    split = [torch.arange(10 * client, 10 * client + 10) for client in range(CLIENTS)]
    return Simulation(model, F.cross_entropy, samples, split, **given)


def public(made: Simulation, until: int) -> list[Tensor]:
    """What is released: the model after each step."""
    return [
        torch.nn.utils.parameters_to_vector(made.consensus().parameters()).detach()
        for _ in made.train(until)
    ]


@pytest.mark.parametrize("name", ["sgd", "adam", "fedprox", "fedavgm", "muon"])
@pytest.mark.parametrize("schedule", [Schedule.periodic(4), Schedule.partial(4)])
def test_without_noise_and_clip_it_is_plain_averaging(name: str, schedule: Schedule) -> None:
    options = {"schedule": schedule, "solver": SOLVERS[name](), "lr": 0.05}
    ours, plain = simulation(**options, privacy=PLAIN), simulation(**options, privacy=None)
    for _ in zip(ours.train(20), plain.train(20), strict=True):
        pass
    torch.testing.assert_close(ours.workers.params, plain.workers.params, rtol=0, atol=1e-12)


def textbook(made: Simulation, cycles: int, tau: int, clip: float, lr: float) -> list[Tensor]:
    """DP-FedAvg, McMahan et al. 2018, algorithm 1 with a fixed denominator; no noise."""
    who = made._current.plan.participation
    module = made.consensus().train()
    w = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    found = []
    for cycle in range(cycles):
        total = torch.zeros_like(w)
        first = cycle * tau + 1
        for slot, there in enumerate(who.present(first)):
            if not there:
                continue
            torch.nn.utils.vector_to_parameters(w.clone(), module.parameters())
            for step in range(first, first + tau):
                batch = made._batch(step)
                inputs, targets, _ = batch.one(slot)
                module.zero_grad()
                F.cross_entropy(module(inputs), targets).backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter -= lr * parameter.grad
            change = torch.nn.utils.parameters_to_vector(module.parameters()).detach() - w
            total += change * min(1, clip / float(change.norm()))
        w = w + total / (who.fraction * who.clients)
        found.append(w.clone())
    return found


def test_with_one_part_it_is_the_textbooks_fedavg_with_clients_drawn_by_chance() -> None:
    options = {"schedule": Schedule.periodic(4), "participation": DRAWN, "solver": SGD()}
    privacy = Privacy(clip=0.2, noise=0.0)
    made = simulation(**options, privacy=privacy)
    wanted = textbook(simulation(**options, privacy=privacy), 8, 4, 0.2, 0.3)
    found = public(made, 32)[3::4]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    drawn = {int(made._current.plan.participation.present(4 * c + 1).sum()) for c in range(8)}
    assert len(drawn) > 2


def test_parts_are_released_one_after_another_each_within_its_share_of_the_clip() -> None:
    """Algorithm 1 of the paper with clipped changes, all taking part; u_j where rows were."""
    made, clip, lr = simulation(solver=SGD()), 0.5, 0.3
    parts = [torch.cat([torch.arange(a, b) for a, b in p]) for p in made.partition.parts]
    shares, module = part_shares([len(p) for p in parts]), made.consensus().train()
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    rows, released = start.repeat(CLIENTS, 1), start.clone()
    for step, found in enumerate(public(made, 12), 1):
        batch = simulation(solver=SGD())._batch(step)
        for slot in range(CLIENTS):
            torch.nn.utils.vector_to_parameters(rows[slot].clone(), module.parameters())
            inputs, targets, _ = batch.one(slot)
            module.zero_grad()
            F.cross_entropy(module(inputs), targets).backward()
            grads = torch.cat([p.grad.flatten() for p in module.parameters()])
            rows[slot] -= lr * grads
        own = parts[step % 4]
        changes = rows[:, own] - released[own]
        clip_(changes, clip * shares[step % 4])
        released[own] += changes.mean(0)
        rows[:, own] = released[own]
        torch.testing.assert_close(found, released, rtol=0, atol=1e-12)


@needs_accountant
@pytest.mark.parametrize("schedule", [Schedule.periodic(4), Schedule.partial(4)])
@pytest.mark.parametrize("who", [None, DRAWN])
def test_every_column_gets_noise_of_z_times_the_clip_once_in_a_cycle(
    schedule: Schedule, who: Participation | None
) -> None:
    """The same deviation in all parts, whatever their size, divided by the clients expected."""
    expected = 4 if who else CLIENTS
    noises = []
    for seed in range(4):
        privacy = Privacy(clip=0.5, noise=8.0)
        options = {"schedule": schedule, "participation": who, "lr": 0.0, "seed": seed}
        made = simulation(**options, privacy=privacy)
        ends = [made.workers.params[0].clone(), *public(made, 40)[3::4]]  # of cycles
        noises += [after - before for before, after in pairwise(ends)]  # a rate of 0 moves nobody
    found = torch.stack(noises) / (8.0 * 0.5 / expected)
    assert float(found.mean()) == pytest.approx(0, abs=0.08)
    assert float(found.var()) == pytest.approx(1, rel=0.08)
    assert float(found.var(0).min()) > 0.3, "no column is left out"


@needs_accountant
@pytest.mark.parametrize("who", [None, DRAWN])
def test_engines_agree(who: Participation | None) -> None:
    privacy = Privacy(clip=0.5, noise=1.0, quantile=0.5, quantile_noise=1.0)
    found = [
        public(simulation(engine=engine, participation=who, privacy=privacy), 17)[-1]
        for engine in ("looped", "vmapped")
    ]
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "drawn": {"participation": DRAWN},
    "adaptive": {"participation": DRAWN, "privacy": Privacy(clip=0.5, noise=0.5, quantile=0.5,
                                                            quantile_noise=1.0)},
    "local": {"privacy": Privacy(clip=0.5, noise=0.5, local=True)},
    "personal": {"participation": DRAWN, "local": ["2.*"]},
    "momentum outside": {"participation": DRAWN, "solver": SOLVERS["fedavgm"]()},
    "paced": {"participation": DRAWN, "pace": Fixed(4, (1, 4, 2), CLIENTS)},
    "late": {"schedule": Schedule(4, offsets=(3, 4)), "participation": DRAWN},
}  # fmt: skip


def case(name: str, processes: Ranks | None = None) -> Simulation:
    return simulation(**{"privacy": Privacy(clip=0.5, noise=0.5), **CASES[name]},
                      processes=processes)  # fmt: skip


@needs_accountant
@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    whole = case(name)
    for _ in whole.train(19):
        pass
    half = case(name)
    for stop in (2, 8, 11):
        again = case(name)
        for _ in half.train(stop):
            pass
        torch.save(half.state(), tmp_path / "state.pt")
        again.load(torch.load(tmp_path / "state.pt", weights_only=False))
        for _ in again.train(19):
            pass
        assert distance(again.state(), whole.state()) == 0, stop
        assert again.spent() == whole.spent(), stop


def stories(processes: Ranks) -> dict[str, float]:
    """How far several processes are from one; all must have released the same."""
    found = {}
    for name in CASES:
        made = case(name, processes)
        for _ in made.train(13):
            pass
        state, common = made.state(), made.workers.common
        for other in processes.each(common.tolist()):
            assert other == common.tolist(), name
        if processes.rank == 0:
            alone = case(name)
            for _ in alone.train(13):
                pass
            found[name] = distance(state, alone.state())
    return found


@needs_accountant
@pytest.mark.slow
def test_three_processes_release_what_one_does(tmp_path: Path) -> None:
    first, *_ = together(3, tmp_path, stories)
    assert {name: far for name, far in first.items() if not far <= 1e-9} == {}
    assert first.keys() == CASES.keys()


@pytest.mark.parametrize("schedule", [Schedule.periodic(4), Schedule.partial(4)])
def test_who_is_not_drawn_leaves_no_trace(schedule: Schedule) -> None:
    """Nothing of a client gets into models, momentum or sums but by its own clipped message."""
    x, y = task()
    one = simulation(participation=DRAWN, schedule=schedule)
    who, ours = one._current.plan.participation, public(one, 28)
    for client in range(0, CLIENTS, 3):
        steps = [s for s in range(1, 29) if client in who(s)[who.present(s)]]
        first = min(steps, default=29)
        other = x.clone()
        other[10 * client : 10 * client + 10] *= -50
        two = simulation(participation=DRAWN, schedule=schedule, samples=(other, y))
        theirs = public(two, 28)
        changed = [s for s, (a, b) in enumerate(zip(ours, theirs, strict=True), 1)
                   if not torch.equal(a, b)]  # fmt: skip
        assert all(step >= first for step in changed), client
        assert bool(changed) == bool(steps), client


def test_a_cycle_begins_with_what_was_released_and_remembers_nothing() -> None:
    seen = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    made = simulation(model=Watched().double(), participation=DRAWN)
    for record in made.train(16):
        if record.step % 4 == 0:
            seen.append(made.workers.common.clone())
            rows = made.workers.params.clone()
            assert (rows - seen[-1]).abs().max() > 0, "rows drift apart within a cycle"
    next(iter(made.train(17)))
    there = made._current.plan.participation.present(17)
    idle = made.workers.params[torch.from_numpy(~there)]
    part = made.schedule(17)[0]
    others = [span for p, spans in enumerate(made.partition.parts) if p != part for span in spans]
    for start, stop in others:
        assert (idle[:, start:stop] == seen[-1][start:stop]).all(), "who is not there rests"
    assert (made.workers.taken[torch.from_numpy(there)] == 1).all()


def test_personal_columns_stay_with_their_client() -> None:
    made = simulation(participation=DRAWN, local=["2.*"])
    who = made._current.plan.participation
    start = {n: p.clone() for n, p in made.consensus().named_parameters()}
    for _ in made.train(40):
        pass
    for name, parameter in made.consensus().named_parameters():
        same = torch.equal(parameter, start[name])
        assert same == name.startswith("2."), "what is released has these as they were"
    bank = made.workers.bank["local.params"].whole()
    active = set(who(40).tolist())
    drawn = {int(c) for step in range(1, 41) for c in who(step)[who.present(step)]}
    first = bank[next(iter(set(range(CLIENTS)) - active - drawn), 0)]
    moved = {c for c in set(range(CLIENTS)) - active if not torch.equal(bank[c], first)}
    assert moved <= drawn


def test_who_comes_is_sent_the_parts_that_changed() -> None:
    for schedule, parts in ((Schedule.periodic(4), 0), (Schedule.partial(4), 3)):
        made = simulation(schedule=schedule, participation=DRAWN)
        for _ in made.train(12):
            pass
        sizes = made.partition.sizes
        model = sum(sizes)
        extra = 2 * (model - sizes[0]) if parts else 0
        assert made.workers.bytes == 8 * (3 * model + extra)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "permute": ({"participation": replace(DRAWN, redistribution="permute")},
                "redistribution = 'permute', which hands over models that were not clipped: use "
                "'released'"),
    "average": ({"participation": replace(DRAWN, redistribution="average")}, "= 'average'"),
    "listen": ({"participation": replace(DRAWN, redistribution="listen")}, "= 'listen'"),
    "none": ({"participation": replace(DRAWN, redistribution="none")}, "= 'none'"),
    "seldom": ({"participation": replace(DRAWN, every=8)}, "once per cycle, and participation.ev"),
    "never": ({"participation": Participation(CLIENTS, 4)}, "= 'permute'"),
    "never, released": ({"participation": replace(DRAWN, every=0)}, "use 4, as averaging.interva"),
    "samples": ({"weights": "samples"}, "averaging.weights = 'samples', which tells of clients"),
    "listed": ({"weights": [1.0] * CLIENTS}, "averaging.weights = list"),
    "recompute": ({"buffers": "recompute"}, "which measures statistics on all clients'"),
    "delay": ({"delay": 1}, "averaging.delay = 1: leave that out"),
    "mix": ({"mix": 0.5}, "averaging.mix = 0.5, which hands over"),
    "wire": ({"wire": "int4"}, "averaging.wire = 'int4', which rounds"),
    "fresh": ({"partition": "fresh"}, "averaging.partition = 'fresh'"),
    "adapt": ({"adapt": partavg.AdaComm(3)}, "an interval that adapts"),
    "multiples": ({"schedule": Schedule(4, 4, multiples=(1, 1, 2, 1))}, "whose cycles differ"),
    "start": ({"schedule": Schedule(4, 4, start=2)}, "whose cycles differ"),
    "aggregate": ({"aggregate": median}, "an aggregate other than its own sum"),
    "scaffold": ({"solver": partavg.SCAFFOLD()}, "solver SCAFFOLD sends more than its parameters"),
    "fednova": ({"solver": partavg.FedNova()}, "solver FedNova sends more than its parameters"),
    "vrl": ({"solver": partavg.VRLSGD(), "participation": DRAWN}, "what each client remembers"),
    "delta": ({"privacy": Privacy(clip=1.0, noise=0.0, delta=0.1)}, "not below 1 / 12 clients"),
    "a dict": ({"privacy": {"clip": 1.0}}, r"give partavg.Privacy\(clip=…, noise=…\)"),
    "released alone": ({"privacy": None, "participation": DRAWN}, "is for private runs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_break_it_is_refused(name: str) -> None:
    options, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        simulation(**options)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()


def test_statistics_are_never_sent_nor_left_to_others() -> None:
    with pytest.raises(
        ValueError, match=r"would be sent as they are: use averaging\.buffers = 'loc"
    ):
        simulation(model=normed())
    with pytest.raises(
        ValueError, match=r"would be sent as they are: use averaging\.local patterns"
    ):
        simulation(model=normed(), participation=DRAWN)
    with pytest.raises(ValueError, match="take over the statistics of others"):
        simulation(model=normed(), participation=DRAWN, buffers="local")
    for options in ({"buffers": "local"}, {"local": ["1.*"], "participation": DRAWN}):
        made = simulation(model=normed(), **options)
        for _ in made.train(9):
            pass
        norm = made.consensus()[1]
        assert not norm.running_mean.any(), "what is released holds those of the start"
        assert made.workers.buffers.any()


def test_distances_between_clients_are_not_shown() -> None:
    with pytest.raises(ValueError, match="not protected by privacy"):
        simulation().discrepancy()


@needs_accountant
def test_training_ends_before_too_much_is_spent(tmp_path: Path) -> None:
    privacy = Privacy(clip=0.5, noise=3.0, max_epsilon=4.0)
    made = simulation(privacy=privacy)
    last = made.affordable(1000)
    with pytest.raises(ValueError, match=f"train up to step {last}"):
        next(iter(made.train(last + 1)))
    made = simulation(privacy=privacy)
    partavg.follow(made, 1000, test=task(), out=tmp_path / "run", every=4)
    assert made.workers.step == last
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["stopped_at"], summary["stopped_by"]) == (last, "max_epsilon")
    assert 3.0 < summary["epsilon"] <= 4.0
    assert summary["delta"] == 1e-5


@needs_accountant
def test_rows_show_epsilon_and_nothing_that_was_not_released(tmp_path: Path) -> None:
    made = simulation(privacy=Privacy(clip=0.5, noise=3.0), participation=DRAWN)
    rows = partavg.follow(made, 12, test=task(), out=tmp_path / "run", every=2).rows
    row = rows[-1]
    assert row.keys() == {"step", "lr", "bytes", "messages", "accuracy", "test_loss", "epsilon",
                          "delta"}  # fmt: skip
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert len(set(spent)) == 3, "one for each cycle"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "train_loss" not in summary
    assert summary["epsilon"] == spent[-1] == made.spent()["epsilon"]
    page = write_page(tmp_path / "report.html", gather([tmp_path / "run"])).read_text()
    head, body = (page.partition(tag)[2] for tag in ("<thead>", "<tbody>"))
    assert ">ε</th>" in head
    assert ">at δ</th>" in head
    assert "<td>1.0e-05</td>" in body
    assert "at δ = 1e-05" in page.partition("<figcaption")[2], "the chart says it, too"
    assert "private, changes clipped at 0.5, noise of 3 clips, δ = 1e-05" in page


@needs_accountant
def test_pages_of_a_private_run_say_nothing_of_clients_samples(tmp_path: Path) -> None:
    for name, privacy in (("private", Privacy(clip=0.5, noise=3.0)), ("open", None)):
        made = simulation(privacy=privacy)
        partavg.follow(made, 4, test=task(), out=tmp_path / name, every=4)
        page = (tmp_path / name / "report.html").read_text()
        tested = json.loads((tmp_path / name / "environment.json").read_text())["data"]["test"]
        for told in ("Labels of each worker", made.settings["data"]["sha256"], tested):
            assert (told in page) == (name == "open"), told


def norm_of_first(at: Any) -> float:
    return float(at.simulation.workers.params[0].norm())


@needs_accountant
def test_epsilon_of_local_noise_is_called_so(tmp_path: Path) -> None:
    for name, local in (("one", False), ("two", True)):
        made = simulation(privacy=Privacy(clip=0.5, noise=3.0, local=local))
        partavg.follow(made, 8, test=task(), out=tmp_path / name, every=4)
    one, two = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")
    )
    assert ("epsilon" in one, "epsilon_local" in one) == (True, False)
    assert ("epsilon" in two, "epsilon_local" in two) == (False, True)
    page = write_page(tmp_path / "report.html", gather([tmp_path])).read_text()
    assert ">local ε<" in page


@needs_accountant
def test_clients_that_measure_are_not_singled_out() -> None:
    keys = []
    for privacy in (Privacy(clip=0.5, noise=3.0), None):
        made = simulation(privacy=privacy)
        rows = partavg.follow(made, 4, test=task(), test_split="alike", every=4).rows
        keys.append({key for key in rows[-1] if key.startswith("clients_")})
    assert keys[0] == {"clients_accuracy", "clients_loss"}
    assert keys[1] - keys[0] == {"clients_accuracy_worst", "clients_accuracy_spread"}


def right(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return (outputs.argmax(1) == targets).sum(), len(targets)


@needs_accountant
def test_metrics_that_look_at_the_run_are_refused() -> None:
    """They could look at any client's model, and at all samples."""
    looks = partavg.Metric("norm", norm_of_first)
    with pytest.raises(ValueError, match=r"metric 'norm' looks at the run, clients' models and"):
        partavg.follow(simulation(), 4, test=task(), metrics=[looks])
    assert "norm" in partavg.follow(simulation(privacy=None), 4, metrics=[looks]).rows[-1]
    rows = partavg.follow(simulation(), 4, test=task(), metrics=[right]).rows
    assert "right" in rows[-1]


@needs_accountant
@pytest.mark.parametrize("who", [None, DRAWN])
def test_a_client_whose_numbers_are_none_does_not_end_a_run(
    tmp_path: Path, who: Participation | None
) -> None:
    """The end of a run, and its name in a sentence, would tell that it was there."""
    (x, y), drawn = task(), simulation(participation=who)._current.plan.participation
    client = int(drawn(1)[2]) if drawn else 3  # engines are chosen by the first rows
    x[10 * client : 10 * client + 10] = torch.inf
    ends = []
    for samples in ((x, y), task()):
        made = simulation(samples=samples, privacy=Privacy(clip=0.5, noise=3.0), participation=who)
        partavg.follow(made, 8, test=task(), out=tmp_path / str(len(ends)), every=4)
        ends.append(made.workers.common)
    assert ends[0].isfinite().all()
    moved = float((ends[0] - ends[1]).norm())
    assert 0 < moved < 4 * 2 * 0.5, (
        "no more than the clip of two cycles, and what others make of it"
    )


@needs_accountant
def test_rows_of_texts_do_not_tell_how_many_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Samples, "tokens", 3)
    made = simulation(privacy=Privacy(clip=0.5, noise=3.0), participation=DRAWN)
    rows = partavg.follow(made, 12, test=task(), every=4).rows
    assert [row["tokens"] for row in rows] == [4 * cycles * 4 * 4 * 3 for cycles in (1, 2, 3)]
    assert made.steps_taken() != 12 * 4


@needs_accountant
def test_a_state_is_for_the_same_promise() -> None:
    one = simulation(privacy=Privacy(clip=0.5, noise=3.0))
    two = simulation(privacy=Privacy(clip=0.5, noise=2.0))
    with pytest.raises(ValueError, match=r"saved with privacy\.noise = 2\.0"):
        one.load(two.state())


def test_steps_of_those_who_are_there_are_counted() -> None:
    made = simulation(participation=DRAWN)
    for _ in made.train(10):
        pass
    who = made._current.plan.participation
    assert isinstance(who, Poisson)
    assert made.steps_taken() == sum(int(who.present(step).sum()) for step in range(1, 11))
