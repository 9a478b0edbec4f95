"""Personal parameters: FedPer, FedBN and LG-FedAvg are what their papers say."""

import json
import re
from collections import OrderedDict
from html import escape
from pathlib import Path
from statistics import mean, pstdev
from typing import Any
from unittest.mock import patch

import pytest
import torch
from click.testing import CliRunner
from tests import tasks
from tests.outside import FedDyn, median
from tests.personal_twin import Twin
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import (
    SCAFFOLD,
    SGD,
    VRLSGD,
    FedNova,
    FedProx,
    Layout,
    Partition,
    Schedule,
    Simulation,
    Span,
    adam,
    build,
    by_channel,
    dirichlet,
    fedadam,
    fedavgm,
    follow,
    load_dataset,
)
from partavg.backends.client_models import own_columns
from partavg.cli import main
from partavg.comparison import configured
from partavg.core.cuts import PARTITIONS
from partavg.core.pace import Fixed
from partavg.core.participation import Participation
from partavg.data.batches import Batches
from partavg.data.dataset import Samples
from partavg.data.test_split import split_alike
from partavg.evaluation import evaluate
from partavg.recipe import load
from partavg.solvers import SOLVERS

CLIENTS, BATCH, STEPS = 6, 4, 14
FEDPER, FEDBN, LG = ("head.*",), ("bn*",), ("body.*", "bn1.*")
LOCALS = {"FedPer": FEDPER, "FedBN": FEDBN, "LG-FedAvg": LG}


def model() -> nn.Module:
    torch.manual_seed(1)
    layers = {
        "body": nn.Linear(5, 6, bias=False), "bn1": nn.BatchNorm1d(6), "act1": nn.Tanh(),
        "neck": nn.Linear(6, 6), "bn2": nn.BatchNorm1d(6), "act2": nn.Tanh(),
        "head": nn.Linear(6, 3),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers)).double()


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    return torch.randn(90, 5, generator=generator).double() + torch.eye(5)[y], y


def split() -> list[Tensor]:
    return dirichlet(samples()[1], CLIENTS, 0, alpha=0.5, minimum=6)


def simulation(local: Any = (), **options: Any) -> Simulation:
    given = {"schedule": Schedule.partial(4), "engine": "looped", **options}
    return Simulation(
        model(), F.cross_entropy, samples(), split(), lr=0.1, batch=BATCH, local=local, **given
    )


def owner(made: Simulation) -> Any:
    """The part of each element of each tensor, as the simulation cuts the model."""
    plan = made._current.plan
    kept = torch.full((made._model.buffers.size,), -1)
    for part, spans in enumerate(plan.buffer_parts):
        for a, b in spans:
            kept[a:b] = part
    known = {**made._model.params.views(made.partition.owners()), **made._model.buffers.views(kept)}
    return lambda name: known[name]


def twin(made: Simulation, **options: Any) -> Twin:
    return Twin(model(), samples(), set(made.local), CLIENTS, made.schedule, owner(made), **options)


def batches(k: int, client: int) -> Tensor:
    return Batches(split(), BATCH, 0)(k)[0][client]


def assert_same(made: Simulation, expected: Twin) -> None:
    """Every slot's model and momentum, and what every client has of its own, active or not."""
    workers, params, buffers = made.workers, made._model.params, made._model.buffers
    for row, client in enumerate(made.clients(max(1, workers.step))):
        slot, own = expected.slots[row], expected.own[client]
        found = params.views(workers.params[row]) | buffers.views(workers.buffers[row])
        wanted = {**slot.params, **own.params, **slot.buffers, **own.buffers}
        for name, tensor in wanted.items():
            if not tensor.is_floating_point():
                continue  # counts are rounded where they are used
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-9)
        if "momentum" in workers.memory:
            velocity = params.views(workers.memory["momentum"][row])
            for name, tensor in {**slot.momentum, **own.momentum}.items():
                torch.testing.assert_close(velocity[name], tensor, rtol=0, atol=1e-9)
    for name, sharing in zip(("params", "buffers"), made._sharing, strict=True):
        kept = (
            sharing.own.views(own_columns(made.workers, made._current.plan, name))
            if sharing.local
            else {}
        )
        for key, rows in kept.items():
            for client, row in enumerate(rows):
                wanted = getattr(expected.own[client], name)[key].double()
                torch.testing.assert_close(row, wanted, rtol=0, atol=1e-9)


def permuted(redistribution: str) -> dict[str, Any]:
    return {"participation": Participation(CLIENTS, 3, 3, redistribution, seed=5)}


CASES: dict[str, dict[str, Any]] = {
    "partial": {},
    "periodic": {"schedule": Schedule.periodic(3)},
    "two parts, layers": {"schedule": Schedule(4, 2), "partition": "layer"},
    "blocks": {"partition": "blocks"},
    "momentum": {"solver": SGD(0.9)},
    "permuted": {**permuted("permute"), "solver": SGD(0.9)},
    "averaged": {**permuted("average"), "solver": SGD(0.9)},
    "kept": {**permuted("none"), "solver": SGD(0.9)},
    "everybody moves": {"participation": Participation(CLIENTS, CLIENTS, 2), "solver": SGD(0.9)},
    "the first draw stays": {"participation": Participation(CLIENTS, 3), "solver": SGD(0.9)},
    "bank elsewhere": {**permuted("permute"), "bank": "cpu"},
    "late": {"delay": 2, "buffers": "local", "solver": SGD(0.9)},
    "late and permuted": {"delay": 1, "buffers": "local", **permuted("permute")},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("who", LOCALS)
def test_the_system_is_the_textbook(who: str, case: str) -> None:
    options = CASES[case]
    made = simulation(LOCALS[who], **options)
    solver = options.get("solver", SGD())
    expected = twin(
        made,
        rho=solver.momentum,
        delay=options.get("delay", 0),
        participation=options.get("participation"),
        average_buffers=options.get("buffers", "part") == "part",
    )
    test = samples()
    own = split_alike(test[1], split(), test[1])
    for record, _ in zip(made.train(STEPS), expected.train(batches, STEPS), strict=True):
        assert_same(made, expected)
        if record.step in (1, 5, STEPS) and "bank" not in options:
            for client, found in enumerate(made.evaluate_clients(test, own)):
                mine = tuple(tensor[own[client]] for tensor in test)
                loss, accuracy = expected.evaluate(client, mine)
                assert found is not None
                assert found.loss == pytest.approx(loss, abs=1e-9)
                assert found.accuracy == pytest.approx(accuracy)
            assert_same(made, expected)  # measuring changes nothing


@pytest.mark.parametrize("maker", PARTITIONS)
def test_parts_are_cut_from_what_is_shared(maker: str) -> None:
    parts = 1 if maker == "whole" else 2
    made = simulation(["neck.weight", "bn2.*"], schedule=Schedule(2, parts), partition=maker)
    params = made._model.params
    owners = params.views(made.partition.owners())
    for name, part in owners.items():
        assert (part == parts).all() == (name in made.local), name
    shared = Layout(
        *zip(*((n, s) for n, s in zip(params.names, params.shapes, strict=True)
               if n not in made.local), strict=True)
    )  # fmt: skip
    alone = PARTITIONS[maker](shared, parts, 0)
    assert made.partition.sizes == alone.sizes
    kept = torch.cat([o.reshape(-1) for n, o in owners.items() if n not in made.local])
    assert torch.equal(kept, alone.owners())


def test_what_is_local_costs_nothing() -> None:
    whole, some = simulation(), simulation(FEDBN)
    columns = sum(
        made.numel() for name, made in model().state_dict().items() if not name.startswith("bn")
    )
    for made, width in ((whole, whole._model.params.size + whole._model.buffers.size),
                        (some, columns)):  # fmt: skip
        for _ in made.train(4):  # each part once
            pass
        assert (made.workers.bytes, made.workers.messages) == (8 * width, 4)


def test_models_that_are_handed_over_leave_it_behind() -> None:
    made = simulation(FEDPER + FEDBN, schedule=Schedule.periodic(2), **permuted("permute"))
    shared = 8 * sum(made.partition.sizes)
    for record in made.train(4):
        if record.step == 4:  # after step 3 models were handed over, after steps 2 and 4 averaged
            assert (record.bytes, record.messages) == (3 * shared, 3)


def test_the_discrepancy_is_that_of_what_is_shared() -> None:
    made = simulation(FEDPER)
    for _ in made.train(5):
        pass
    rows = made.workers.params[:, : sum(made.partition.sizes)]  # the head comes last
    apart = (rows - rows.mean(0)).square().sum(1).mean()
    assert made.discrepancy().total == pytest.approx(float(apart))
    assert sum(made.discrepancy().per_part) == pytest.approx(float(apart))
    head = made._model.params.views(made.workers.params)["head.weight"]
    assert head.std(0).min() > 0, "heads differ"


def test_a_partition_of_your_own_goes_with_it() -> None:
    layout = Layout.of(dict(model().named_parameters()))
    given = by_channel(layout, 2)
    made = simulation(FEDPER, schedule=Schedule.partial(2), partition=given)
    head = layout.starts[layout.names.index("head.weight")]
    owners = made.partition.owners()
    assert torch.equal(owners[:head], given.owners()[:head])
    assert (owners[head:] == 2).all()
    again = simulation(FEDPER, schedule=Schedule.partial(2), partition=made.partition)
    assert again.partition == made.partition


def test_a_partition_that_does_not_fit_is_refused() -> None:
    layout = Layout.of(dict(model().named_parameters()))
    size, head = layout.size, layout.starts[layout.names.index("head.weight")]
    headless = Partition(size, ((Span(0, head),), (Span(head, size),)))
    with pytest.raises(ValueError, match="part 1 of the partition has nothing but local columns"):
        simulation(FEDPER, schedule=Schedule.partial(2), partition=headless)
    leaving = Partition(size, ((Span(0, head),),), (Span(head, size),))
    with pytest.raises(ValueError, match=f"leaves out columns {head} to {size}: name their param"):
        simulation(schedule=Schedule.periodic(2), partition=leaving)
    with pytest.raises(ValueError, match="leaves out columns"):
        simulation(FEDBN, schedule=Schedule.periodic(2), partition=leaving)
    with pytest.raises(ValueError, match="cover each column exactly once"):
        Partition(size, ((Span(0, head),),), (Span(head - 1, size),))


@pytest.mark.parametrize(
    ("local", "sentence"),
    [
        (["haed.*"], r"local 'haed\.\*' matches no parameter that is trained and no buffer: did "
                     r"you mean 'head\.\*'\?"),
        (["*"], "matches all parameters: nothing is left to average; leave something out"),
        ("head.*", r"local 'head.\*' is no list of patterns"),
        (["head.weight", "Head.*"], "did you mean 'head"),
    ],
)  # fmt: skip
def test_patterns_that_cannot_be_meant(local: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        simulation(local)


def test_statistics_of_one_model_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="buffers 'recompute' makes statistics for one model"):
        simulation(FEDPER, buffers="recompute")


@pytest.mark.parametrize("buffers", ["part", "every", "local"])
def test_statistics_of_local_modules_stay(buffers: str) -> None:
    """By their own names, or because all parameters of their module are local."""
    made = simulation(["bn1.weight", "bn1.bias", "bn2.running_mean"], buffers=buffers)
    own = {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked", "bn2.running_mean"}
    assert own <= set(made.local)
    assert "bn2.running_var" not in made.local
    for _ in made.train(8):
        pass
    views = made._model.buffers.views(made.workers.buffers)
    for name, rows in views.items():
        if name in made.local and "num_batches" not in name:
            assert rows.std(0).min() > 1e-6, name
    apart = (views["bn2.running_var"].std(0) > 1e-12).sum()
    averaged_now = {"part": 1, "every": 6, "local": 0}[buffers]
    assert apart == 6 - averaged_now


WITHOUT_MEMORY_OF_AVERAGES = ("sgd", "adam", "adamw", "muon")
SGDS: dict[str, Any] = {
    "fedprox": FedProx(0.5, SGD(0.9)),
    "scaffold": SCAFFOLD(SGD(0.9)),
    "vrl_sgd": VRLSGD(),
    "fednova": FedNova(SGD(0.9)),
    "fedavgm": fedavgm(base=SGD(0.9)),
    "fedadam": fedadam(),
    "feddyn": FedDyn(0.3, SGD(0.9)),
}


@pytest.mark.parametrize("solver", SGDS)
def test_solvers_above_leave_local_columns_to_the_lowest(solver: str) -> None:
    """On losses in which each column is by itself, local ones are those of that solver alone."""

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Parameter(torch.linspace(-1, 1, 5).double())
            self.own = nn.Parameter(torch.linspace(1, 2, 5).double())

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.shared - x, self.own + 2 * x], 1)

    def trained(**options: Any) -> Tensor:
        made = Simulation(
            Columns(), lambda out, _: out.square().sum(1).mean(), samples(), split(),
            lr=0.01, batch=BATCH, schedule=Schedule.partial(2), local=["own"],
            engine="looped", **options,
        )  # fmt: skip
        for _ in made.train(9):
            pass
        return made.workers.params

    made: Any = SGDS[solver]
    unequal = {"pace": Fixed(2, (1, 2), CLIENTS)} if solver == "fednova" else {}
    with_it, alone = trained(solver=made, **unequal), trained(solver=made.base, **unequal)
    torch.testing.assert_close(with_it[:, 5:], alone[:, 5:], rtol=0, atol=1e-13)
    assert not torch.allclose(with_it[:, :5], alone[:, :5])


def test_every_solver_is_known() -> None:
    assert {*SOLVERS} == {*WITHOUT_MEMORY_OF_AVERAGES, *SGDS, "diloco", "muloco"} - {"feddyn"}


@pytest.mark.parametrize("redistribution", ["permute", "average", "none"])
def test_adam_counts_the_steps_of_the_client(redistribution: str) -> None:
    """A client's own columns move as if it had trained them alone, whoever trained in between."""
    x = torch.full((12, 1), 2.0).double()
    made = Simulation(
        nn.Linear(1, 1).double(), F.mse_loss, (x, x), list(torch.arange(12).view(6, 2)),
        lr=0.1, batch=2, schedule=Schedule.periodic(2), local=["bias"], engine="looped",
        solver=adam(), participation=Participation(6, 2, 3, redistribution, seed=1),
    )  # fmt: skip
    first = {}
    before = made._model.start()[0][1]
    for record in made.train(30):
        for row, client in enumerate(made.clients(record.step)):
            if client not in first:
                first[client] = float((made.workers.params[row, 1] - before).abs())
    assert len(first) == 6
    assert max(first.values()) == pytest.approx(0.1, abs=1e-6), "Adam's first step is the rate"


def test_with_an_aggregate_the_model_of_all_has_the_mean_of_what_is_local() -> None:
    made = simulation(FEDPER, aggregate=median)
    for _ in made.train(5):
        pass
    mean = made._model.params.views(made.workers.params.mean(0))["head.weight"]
    torch.testing.assert_close(made.consensus().head.weight.data, mean)


def test_one_step_of_everybody_alone() -> None:
    """With the rest of the model local, too, it is training alone."""
    everything_but = [name for name, _ in model().named_parameters() if name != "neck.bias"]
    made, alone = simulation(everything_but), simulation(schedule=Schedule.periodic(10**6))
    for _ in zip(made.train(1), alone.train(1), strict=True):
        pass
    names = made._model.params.names
    for name in set(names) - {"neck.bias"}:
        rows = (m._model.params.views(m.workers.params)[name] for m in (made, alone))
        torch.testing.assert_close(*rows)


def recorded(folder: Path, **sections: dict) -> tuple[list[dict], dict]:
    """The rows and the summary of a run."""
    rows = list(tasks.run(folder, **sections))
    return rows, json.loads((folder / "summary.json").read_text())


def test_a_run_measures_clients_where_something_is_local(tmp_path: Path) -> None:
    rows, summary = recorded(tmp_path / "run", averaging={"local": ["5.*"]})
    keys = {"clients_accuracy", "clients_accuracy_worst", "clients_accuracy_spread", "clients_loss"}
    measured = [row["step"] for row in rows if keys <= row.keys()]
    assert measured == [5, 10, 12], "as often as u would be, and at the end"
    last = rows[-1]
    assert last["clients_accuracy_worst"] <= last["clients_accuracy"]
    for key in keys:
        assert summary[key] == last[key]
    assert not {"accuracy", "test_loss", "train_loss"} & {*summary, *last}, "nobody has u"


def test_clients_can_be_measured_with_nothing_local(tmp_path: Path) -> None:
    rows, summary = recorded(tmp_path / "run", metrics={"clients_every": 4})
    assert [row["step"] for row in rows if "clients_accuracy" in row] == [4, 8, 12]
    assert [row["step"] for row in rows if "accuracy" in row] == [5, 10, 12]
    config, data = tasks.config(), tasks.data()
    own = build.test_split(config, data)
    assert sorted(torch.cat(own).tolist()) == list(range(len(data.test.targets)))
    model = build.simulation(config, data, torch.device("cpu"))
    for _ in model.train(12):
        pass
    found = [
        evaluate(model.consensus(), F.cross_entropy, tuple(t[mine] for t in data.test)).accuracy
        for mine in own
    ]
    assert summary["clients_accuracy"] == pytest.approx(mean(found))
    assert summary["clients_accuracy_worst"] == pytest.approx(min(found))
    assert summary["clients_accuracy_spread"] == pytest.approx(pstdev(found))


def test_clients_are_not_measured_unasked(tmp_path: Path) -> None:
    rows, _ = recorded(tmp_path / "run")
    assert not any(key.startswith("clients") for row in rows for key in row)


def test_clients_that_are_left_out_are_counted(tmp_path: Path) -> None:
    data = tasks.data()
    few = data._replace(test=Samples(*(tensor[:3] for tensor in data.test)))
    with patch.object(tasks, "data", lambda: few):
        rows, summary = recorded(tmp_path / "run", averaging={"local": ["5.*"]})
    assert summary["clients_left_out"] == 1
    assert "clients_accuracy" in rows[-1]


def test_a_scaled_run_measures_clients_as_often() -> None:
    config = tasks.config(metrics={"clients_every": 8}, training={"scale": 0.5})
    assert build.metrics(config).clients_every == 4


def test_a_recipe_that_cannot_be_is_refused_at_once() -> None:
    for averaging, sentence in (
        ({"local": ["9.*"]}, "local '9.*' matches no parameter"),
        ({"local": ["*"]}, "nothing is left to average"),
        ({"local": ["5.*"], "buffers": "recompute"}, "there is none: use part, every or local"),
        ({"local": "5.*"}, "averaging.local = "),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            build.check(tasks.config(averaging=averaging), tasks.data())


def test_writers_are_tested_on_their_own() -> None:
    data = tasks.data()
    known = data._replace(writers=torch.arange(120) % 8, test_writers=torch.arange(30) % 8)
    config = tasks.config(split={"name": "writer", "alpha": None, "minimum": None})
    owned, tested = build.split(config, known), build.test_split(config, known)
    for mine, test in zip(owned, tested, strict=True):
        assert set(known.test_writers[test].tolist()) == set(known.writers[mine].tolist())
    alike = build.test_split(config, known._replace(test_writers=None))
    assert sorted(torch.cat(alike).tolist()) == list(range(30))


def test_follow_measures_clients(tmp_path: Path) -> None:
    test = samples()
    table = follow(simulation(FEDPER), 4, test=test, every=2)
    assert {"clients_accuracy", "clients_accuracy_worst"} <= set(table.columns)
    assert "accuracy" not in table.columns
    both = follow(simulation(), 4, test=test, test_split="alike", every=2)
    assert {"clients_accuracy", "accuracy"} <= set(both.columns)
    assert "clients_accuracy" not in follow(simulation(), 4, test=test, every=2).columns
    with pytest.raises(ValueError, match="test_split = 'likewise' is not known: use alike"):
        follow(simulation(), 4, test=test, test_split="likewise")
    with pytest.raises(ValueError, match="needs samples to deal: give test, too"):
        follow(simulation(), 4, test_split="alike")


def test_a_state_of_other_local_parameters_is_refused() -> None:
    saved = simulation(FEDPER).state()
    with pytest.raises(ValueError, match=r"averaging\.local"):
        simulation(FEDBN).load(saved)


def test_a_comparison_shows_clients(tmp_path: Path) -> None:
    """Periodic averaging has both, FedPer has no averaged model to show: both in one table."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        """
        [training]
        workers = 4
        steps = 4
        [model]
        hidden = [4]
        [averaging]
        interval = 2
        parts = 1
        [metrics]
        clients_every = 2
        [schemes.fedavg]
        [schemes.fedper]
        averaging.local = ["3.*"]
        """
    )
    done = CliRunner().invoke(main, ["compare", str(recipe), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "Clients: each one's own model on its own test samples" in " ".join(done.output.split())
    assert re.search("with the highest accuracy of clients", done.output)
    page = (tmp_path / "out" / "report.html").read_text()
    for heading in ("clients' accuracy %", "worst client %", "spread of clients %"):
        assert escape(heading) in page
    assert "Accuracy of the worst client" in page
    run = CliRunner().invoke(
        main, ["run", str(recipe), "--scheme", "fedper", "--out", str(tmp_path / "run")]
    )
    assert run.exit_code == 0, run.output
    assert "accuracy of clients " in run.output
    assert "u_K" not in run.output


@pytest.mark.parametrize("name", ["personal/fedper", "personal/fedbn"])
def test_the_recipes_that_come_with_it(name: str) -> None:
    recipe = load(name)
    for scheme in recipe.schemes:
        config = configured(recipe, scheme)
        build.check(config, load_dataset("fashion_subset"))
        assert ("fed" in scheme) == bool(config.averaging.local) or scheme in ("alone", "fedavg")
