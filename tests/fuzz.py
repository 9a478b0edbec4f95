"""Bad values for every argument of every public function; what is wrong with the answers.

Run as a program, `python -m tests.fuzz`, without the shapes that the tests check: a user's process
has only our own checks.
"""

import itertools
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.limits import seconds
from torch import nn
from torch.nn import functional as F

import partavg

BAD: dict[str, Any] = {
    "None": None,
    "a word": "nonsense",
    "an empty text": "",
    "a number in a text": "3",
    "bytes": b"3",
    "-1": -1,
    "0": 0,
    "True": True,
    "0.5": 0.5,
    "1.5": 1.5,
    "2.0": 2.0,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "10^30": 10**30,
    "3j": 3j,
    "an empty list": [],
    "a list of words": ["a", "b"],
    "a list of NaN": [float("nan")] * 3,
    "a ragged list": [[1], [2, 3]],
    "an empty dict": {},
    "a dict": {"a": 1},
    "an object": object(),
    "a class": int,
    "a function": len,
    "a scalar tensor": torch.tensor(2),
    "a tensor": torch.linspace(-1, 1, 3),
    "a large tensor": torch.randn(40, 40),
    "an empty tensor": torch.empty(0),
    "a mask": torch.tensor([True, False, True]),
    "a tensor of NaN": torch.full((3,), float("nan")),
    "an array": np.arange(3),
    "an array of objects": np.array([None, "a"], dtype=object),
}

WHOLE = {"0", "10^30", "-1"}
"""Whole numbers, which some arguments take."""
REAL = {"0", "0.5", "1.5", "2.0", "-1"}
TEXT = {"a word", "an empty text", "a number in a text"}
FLAG = {"True"}
EVERYTHING = set(BAD)


FOREVER = {"until", "set"}
"""What takes so long as it is told to."""


class Call(NamedTuple):
    """A call that works, and which bad values each of its arguments takes all the same."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    accepts: Mapping[str, set[str]] = MappingProxyType({})
    names: str = ""

    def __str__(self) -> str:
        return self.names or self.function.__qualname__


def calls(folder: Path) -> Iterator[Call]:
    """Every public function and class that a user calls."""
    yield from policies()
    yield from partitions()
    yield from solvers()
    yield from data()
    yield from simulations(folder)
    yield from attaching()
    yield from privacy()
    yield from others(folder)


def policies() -> Iterator[Call]:
    seed = {"seed": WHOLE}
    yield Call(
        partavg.Schedule,
        {"interval": 4, "parts": 2, "shuffle": 1, "start": 0, "multiples": (1, 2)},
        {
            "interval": {"10^30"},
            "shuffle": {"None", *WHOLE},
            "start": {"0", "10^30"},
            "multiples": {"an empty list"},
        },
    )
    yield Call(
        partavg.Schedule,
        {"interval": 4, "parts": 2, "offsets": (1, 2)},
        {"interval": {"10^30"}, "offsets": {"an empty list"}},
    )
    yield Call(
        partavg.Schedule.streaming,
        {"interval": 4, "parts": 3, "delay": 1},
        {"interval": {"10^30"}, "delay": {"0"}},
    )
    for made in (partavg.Schedule.periodic, partavg.Schedule.partial):
        yield Call(made, {"interval": 4}, {"interval": {"10^30"}})
    yield Call(partavg.Schedule.partial(4), {"step": 3}, {"step": WHOLE}, "Schedule(…)")
    yield Call(
        partavg.Participation,
        {"clients": 4, "active": 2, "every": 3, "redistribution": "average", "seed": 0},
        {"clients": {"10^30"}, "every": {"0", "10^30"}, **seed},
    )
    positive = {"0.5", "1.5", "2.0", "10^30"}
    yield Call(
        partavg.StepDecay,
        {"base": 0.1, "warmup": 2, "at": (4, 8), "factor": 0.1},
        {
            "base": {"0", *positive},
            "warmup": {"0", "10^30"},
            "at": {"an empty list"},
            "factor": positive,
        },
    )
    yield Call(
        partavg.Cosine,
        {"base": 0.1, "steps": 9, "warmup": 2, "floor": 0.1},
        {
            "base": {"0", *positive},
            "steps": {"10^30"},
            "warmup": {"0", "10^30"},
            "floor": {"0", "0.5"},
        },
    )
    yield Call(partavg.PostLocal, {"until": 5}, {"until": {"0", "10^30"}})
    yield Call(partavg.AdaComm, {"block": 5}, {"block": {"10^30"}})
    yield Call(partavg.FedLAMA, {"phi": 3}, {"phi": {"10^30"}})
    yield Call(partavg.Patience, {"metric": "accuracy", "rows": 3}, {"rows": {"10^30"}})


def partitions() -> Iterator[Call]:
    layout = partavg.Layout(("0.weight", "0.bias", "2.weight"), ((4, 3), (4,), (2, 4)))
    for cut in (
        partavg.blocks,
        partavg.by_channel,
        partavg.by_layer,
        partavg.contiguous,
        partavg.sequential,
        partavg.strided,
    ):
        yield Call(cut, {"layout": layout, "parts": 2, "seed": 0}, {"seed": WHOLE})
    yield Call(partavg.whole, {"layout": layout, "parts": 1, "seed": 0}, {"seed": WHOLE})
    yield Call(partavg.by_name, {"layout": layout, "patterns": [["0"], ["2.*"]]})
    yield Call(
        partavg.Layout,
        {"names": ("a", "b"), "shapes": ((4, 3), (4,))},
        {"names": {"a list of words"}, "shapes": {"a ragged list"}},
    )
    yield Call(partavg.Layout.of, {"tensors": {"a": torch.ones(2)}}, {"tensors": {"an empty dict"}})
    yield Call(layout.views, {"flat": torch.zeros(24)}, {}, "Layout.views")
    yield Call(
        partavg.Partition, {"size": 3, "parts": ((partavg.Span(0, 1),), (partavg.Span(1, 3),))}
    )
    for place in ("start", "stop"):
        yield Call(
            lambda **ends: partavg.Partition(
                2, ((partavg.Span(**{"start": 0, "stop": 2, **ends}),),)
            ),
            {place: {"start": 0, "stop": 2}[place]},
            {"start": {"0"}},
            f"Partition of Span({place}=…)",
        )


def solvers() -> Iterator[Call]:
    share, positive = {"0", "0.5"}, {"0.5", "1.5", "2.0", "10^30"}
    natural = {"0", *positive}
    yield Call(
        partavg.SGD,
        {
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 0.1,
            "decay": "all",
            "momentum_at_averaging": "local",
        },
        {"momentum": {"0.5"}, "nesterov": FLAG, "weight_decay": natural},
    )
    adam = {"beta1": share, "beta2": share, "eps": positive, "weight_decay": natural}
    for make in (partavg.adam, partavg.adamw):
        given = {"beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.1}
        yield Call(make, given, adam)
    yield Call(partavg.FedProx, {"mu": 0.1, "base": partavg.SGD()}, {"mu": natural})
    yield Call(partavg.SCAFFOLD, {"base": partavg.SGD()})
    yield Call(partavg.VRLSGD, {"base": partavg.SGD()})
    yield Call(partavg.FedNova, {"base": partavg.SGD()})
    base = {"base": partavg.SGD()}
    yield Call(
        partavg.Outer,
        {"lr": 0.5, "keep": 0.0, "optimizer": partavg.SGD(), **base},
        {"lr": positive, "keep": share},
    )
    yield Call(
        partavg.fedavgm,
        {"lr": 0.5, "momentum": 0.9, "nesterov": True, **base},
        {"lr": positive, "momentum": {"0.5"}, "nesterov": FLAG},
    )
    betas = {"beta1": share, "beta2": share, "eps": positive, "lr": positive}
    yield Call(partavg.fedadam, {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "eps": 1e-3, **base}, betas)
    yield Call(
        partavg.diloco,
        {"lr": 0.7, "momentum": 0.9, "keep": 0.0, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8,
         "weight_decay": 0.1},
        {**betas, "momentum": {"0.5"}, "keep": share, "weight_decay": natural},
    )  # fmt: skip
    muon = {"weight_decay": 0.1, "adjust_lr": "original", "bfloat16": False, "adamw": ("head.*",),
            "adamw_rate": 1.0}  # fmt: skip
    accepted = {"weight_decay": natural, "adamw_rate": positive, "bfloat16": FLAG,
                "adamw": {"a list of words", "an empty list"}}  # fmt: skip
    yield Call(
        partavg.Muon,
        {"momentum": 0.9, "nesterov": True, "steps": 5, "eps": 1e-7, "beta1": 0.9, "beta2": 0.9,
         "adamw_eps": 1e-8, **muon},
        {"momentum": share, "nesterov": FLAG, "steps": {"10^30"}, "eps": positive, "beta1": share,
         "beta2": share, "adamw_eps": positive, **accepted},
    )  # fmt: skip
    yield Call(
        partavg.muloco,
        {"lr": 0.7, "momentum": 0.9, "muon_momentum": 0.9, **muon},
        {"lr": positive, "momentum": {"0.5"}, "muon_momentum": share, **accepted},
    )
    yield Call(partavg.abilities, {"solver": partavg.SGD()})


def data() -> Iterator[Call]:
    labels, numbers = torch.arange(60) % 3, {"an array"}
    anything = {"a list of words", "a list of NaN", "a ragged list", "an array of objects",
                "a tensor", "a large tensor", "a mask", "a tensor of NaN", *numbers}  # fmt: skip
    alpha = {"0.5", "1.5", "2.0", "10^30"}
    for cut, options, accepts in (
        (partavg.iid, {}, {"labels": anything}),
        (partavg.by_quantity, {"alpha": 1.0, "minimum": 1}, {"labels": anything}),
        (
            partavg.dirichlet,
            {"alpha": 1.0, "balanced": True, "minimum": 1, "labels": "true"},
            {"targets": numbers},
        ),
        (partavg.shards, {}, {}),
        (partavg.by_label, {"classes": 2, "minimum": 1}, {}),
    ):
        samples = "targets" if cut is partavg.dirichlet else "labels"
        given = {samples: labels, "workers": 2, "seed": 0, **options}
        taken = {"seed": WHOLE, "alpha": alpha, "balanced": FLAG, "minimum": {"0"}}
        yield Call(cut, given, {**taken, **accepts})
    words = {"a list of words", "an array", "a mask"}
    yield Call(partavg.by_client, {"clients": [0, 1, 0]}, {"clients": words})
    images = torch.randint(0, 255, (9, 3, 8, 8), dtype=torch.uint8)
    yield Call(
        partavg.Images.fit,
        {"images": images, "normalize": "channel", "crop": 2, "flip": True},
        {"crop": {"0", "10^30"}, "flip": FLAG},
    )
    fitted = partavg.Images.fit(images)
    yield Call(fitted, {"images": images}, {}, "Images(…)")
    yield Call(
        partavg.Images,
        {"mean": torch.zeros(3, 1, 1), "deviation": torch.ones(3, 1, 1), "crop": 2, "flip": True},
        {"crop": {"0", "10^30"}, "flip": FLAG, "mean": {"a tensor", "a large tensor"}},
    )
    owned, tested = partavg.iid(labels, 2, seed=0), torch.arange(30) % 3
    many = {"a tensor", "a tensor of NaN", "an array", "a large tensor"}
    yield Call(
        partavg.split_alike,
        {"labels": labels, "split": owned, "test_labels": tested, "seed": 0},
        {
            "test_labels": many | {"an empty tensor"},
            "seed": {"0", "10^30"},
            "split": {"a ragged list"},
        },
    )
    yield Call(
        partavg.split_by_owner,
        {"owners": labels, "split": owned, "test_owners": tested},
        {"test_owners": {"an array", "a mask", "a list of words"}, "split": {"a ragged list"}},
    )
    x, table = torch.randn(60, 4), {"x": torch.randn(60, 4), "label": labels}
    yield Call(
        partavg.as_samples,
        {"given": table, "inputs": "x", "targets": "label", "dtype": None},
        {"inputs": {"None"}, "targets": {"None"}, "dtype": {"None"}},
    )
    whole = {"train": (x, labels), "test": (x, labels)}
    yield Call(
        partavg.Dataset,
        {**whole, "classes": 3, "writers": labels, "test_writers": labels},
        {"classes": {"None", "0", "10^30"}, "writers": {"None"}, "test_writers": {"None"}},
    )
    yield Call(
        partavg.load_dataset, {"name": "fashion_subset", "root": None}, {"root": {"None", *TEXT}}
    )


def simulations(folder: Path) -> Iterator[Call]:
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = torch.arange(60) % 3
    split = partavg.iid(y, 2, seed=0)
    task = {"model": nn.Linear(4, 3), "loss": F.cross_entropy, "samples": (x, y), "split": split}
    options = {
        "schedule": partavg.Schedule.partial(2), "lr": 0.1, "batch": 4, "solver": partavg.SGD(),
        "partition": "channel", "weights": "uniform", "buffers": "part", "participation": None,
        "local": (), "store": "auto", "bank": "device", "pace": None, "delay": 0, "adapt": None,
        "transform": None, "mix": 0.5, "wire": "int8",
        "engine": "vmapped", "chunk": 0, "precision": "auto", "deterministic": False, "seed": 0,
        "device": "cpu",
    }  # fmt: skip

    def trained(**given: Any) -> None:
        simulation = partavg.Simulation(**{**task, **options, **given})
        simulation.run(3) if hasattr(simulation, "run") else list(simulation.train(3))

    accepts = {
        "lr": {"0", "0.5", "1.5", "2.0", "a scalar tensor", "10^30"},
        "batch": set(),
        "participation": {"None"}, "pace": {"None"}, "adapt": {"None"}, "transform": {"None"},
        "mix": {"None", "0", "0.5"},
        "delay": {"0"}, "chunk": {"0", "10^30"}, "deterministic": {"True"},
        "seed": {"0", "10^30"}, "split": {"a ragged list"}, "solver": {"None"},
        "local": {"an empty list"},
    }  # fmt: skip
    for name, good in {**task, **options}.items():
        yield Call(trained, {name: good}, accepts, f"Simulation({name}=…)")

    yield from attacked(lambda **given: trained(**{"wire": "full", "mix": None, **given}))
    few = {"schedule": partavg.Schedule.partial(2), "lr": 0.1, "batch": 4}
    few["engine"] = "looped"  # to try both would take most of the time

    def followed(**given: Any) -> None:
        made = partavg.Simulation(**task, **few)
        partavg.follow(made, **{"until": 3, "every": 1, **given})

    numbers = itertools.count()
    for name, good, taken in (
        ("until", 3, {"0", "10^30"}), ("every", 1, {"10^30"}), ("test", (x, y), {"None"}),
        ("name", "run", TEXT), ("metrics", (), {"an empty list", "an empty dict"}),
        ("sinks", (), {"an empty list"}),
        ("stop", None, {"None", "a function"}), ("best", "", {"an empty text"}),
        ("checkpoint_every", 2, {"0", "10^30"}),
    ):  # fmt: skip
        yield Call(followed, {name: good}, {name: taken}, f"follow({name}=…)")
    yield Call(
        lambda resume: followed(out=folder / f"run{next(numbers)}", resume=resume),
        {"resume": True}, {"resume": {"True"}}, "follow(resume=…)",
    )  # fmt: skip
    yield Call(
        lambda test_split: followed(test=(x, y), test_split=test_split),
        {"test_split": split}, {"test_split": {"None", "a ragged list"}}, "follow(test_split=…)",
    )  # fmt: skip
    loaded = partavg.Simulation(**task, **few)
    yield Call(loaded.load, {"saved": loaded.state()}, {}, "Simulation.load")
    judged = {"samples": (x, y), "split": split, "metrics": ()}
    yield Call(
        loaded.evaluate_clients, judged,
        {"split": {"a ragged list"}, "metrics": {"an empty list", "an empty dict"}},
        "Simulation.evaluate_clients",
    )  # fmt: skip

    def compared(**given: Any) -> None:
        def made(schedule: partavg.Schedule, seed: int) -> partavg.Simulation:
            return partavg.Simulation(**task, **{**few, "schedule": schedule}, seed=seed)

        out = folder / f"compared{next(numbers)}"
        usual = {"simulation": made, "until": 3, "every": 1, "interval": 2, "out": out}
        partavg.compare(**{**usual, **given})

    for name, good, taken in (
        ("interval", 2, set()),
        ("seeds", 1, {"an array"}), ("every", 1, {"10^30"}), ("until", 3, {"10^30"}),
    ):  # fmt: skip
        yield Call(compared, {name: good}, {name: taken}, f"compare({name}=…)")

    def swept(**given: Any) -> None:
        def made(schedule: Any, seed: int, samples: Any, lr: float) -> partavg.Simulation:
            own = {**task, "samples": samples, "split": partavg.iid(samples.targets, 2, seed)}
            return partavg.Simulation(**own, **{**few, "schedule": schedule, "lr": lr}, seed=seed)

        out = folder / f"swept{next(numbers)}"
        usual = {"simulation": made, "until": 2, "every": 1, "interval": 2, "out": out, "seeds": 1}
        usual |= {"grid": {"lr": [0.1]}, "train": (x, y), "test": (x, y), "validation": 0.5}
        partavg.sweep(**{**usual, **given})

    for name, good, taken in (
        ("grid", {"lr": [0.1]}, set()), ("seeds", 1, set()), ("tune_seeds", 1, set()),
        ("budget", 3, {"None", "10^30"}), ("search", "listed", set()), ("validation", 0.5, {"0.5"}),
        ("until", 2, {"10^30"}), ("every", 1, {"10^30"}), ("train", (x, y), set()),
    ):  # fmt: skip
        yield Call(swept, {name: good}, {name: taken}, f"sweep({name}=…)")
    small = {"training.steps": 1, "training.workers": 2, "metrics.evaluate_every": 0}
    recipe = folder / "small.toml"
    recipe.write_text("[training]\nsteps = 1\nworkers = 2\n[metrics]\nevaluate_every = 0\n")
    for name, good, taken in (
        ("recipe", "demo", set()), ("scheme", "partial", {"None"}),
        ("set", {"training.lr": 0.1}, {"None", "an empty dict"}),
        ("sinks", (), {"an empty list"}), ("data", None, {"None", *TEXT}),
    ):  # fmt: skip
        yield Call(
            lambda **given: partavg.run(
                **{"recipe": recipe, "set": small, "out": folder / f"ran{next(numbers)}", **given}
            ),
            {name: good}, {name: taken}, f"run({name}=…)",
        )  # fmt: skip
    yield Call(
        partavg.evaluate,
        {"module": nn.Linear(4, 3), "loss": F.cross_entropy, "samples": (x, y), "metrics": ()},
        {"metrics": {"an empty list", "an empty dict"}},
    )


def attacked(trained: Callable[..., None]) -> Iterator[Call]:
    """Aggregates and attacks, and their options."""
    aggregates, attacks = partavg.aggregates, partavg.attacks
    given = {
        "aggregate": (aggregates.Median(), set()),
        "attack": (attacks.SignFlip(0.5), {"None"}),
        "max_weight": (2.0, {"None", "1.5", "2.0", "10^30"}),
    }
    for name, (good, taken) in given.items():
        yield Call(trained, {name: good}, {name: taken}, f"Simulation({name}=…)")
    any_number = {*REAL, "10^30"}
    positive = {"0.5", "1.5", "2.0", "10^30"}
    for make, options in {
        aggregates.Trimmed: {"share": (0.2, {"0"})},
        aggregates.NormBound: {"times": (1.0, positive), "bound": (1.0, {"None", *positive})},
        aggregates.GeometricMedian: {"rounds": (2, set())},
    }.items():
        for name, (good, taken) in options.items():
            yield Call(
                lambda make=make, **given: trained(aggregate=make(**given)),
                {name: good}, {name: taken}, f"Simulation(aggregate={make.__name__}({name}=…))",
            )  # fmt: skip
    who = {"fraction": (0.5, {"0", "0.5"}), "clients": ((0,), {"an empty list"})}
    for make, options in {
        attacks.SignFlip: {**who, "scale": (1.0, any_number)},
        attacks.Scaled: {"scale": (1.0, any_number)},
        attacks.Noise: {"deviation": (1.0, any_number)},
        attacks.Constant: {"value": (1.0, any_number)},
        attacks.LittleIsEnough: {"z": (1.0, {"None", *any_number})},
        attacks.LabelFlip: who,
    }.items():
        for name, (good, taken) in options.items():
            yield Call(
                lambda make=make, **given: trained(attack=make(**{"fraction": 0.5, **given})),
                {name: good}, {name: taken}, f"Simulation(attack={make.__name__}({name}=…))",
            )  # fmt: skip


def attaching() -> Iterator[Call]:
    """A process alone: what needs others is tested with them."""
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    good = {
        "model": net, "optimizer": optimizer, "interval": 2, "parts": 1, "partition": "channel",
        "shuffle": True, "offsets": (0, 1), "delay": 0, "mix": 0.5, "wire": "full",
        "buffers": "part", "local": (), "weight": 1.0, "solver": None, "adapt": None,
        "group": None, "mesh": None, "manager": None, "scaler": None, "seed": 0,
        "memory": "full", "uneven": True, "pace": 1,
        "aggregate": lambda messages, weights, about: weights @ messages,
    }  # fmt: skip
    accepts = {
        "offsets": {"None"}, "mix": {"None", "0", "0.5"},
        "optimizer": {"None"}, "parts": {"None"}, "shuffle": {"True"}, "delay": {"0"},
        "local": {"an empty list"}, "weight": {"0.5", "1.5", "2.0", "10^30"}, "solver": {"None"},
        "adapt": {"None"}, "group": {"None"}, "manager": {"None"}, "scaler": {"None"},
        "seed": {"0", "10^30"}, "mesh": {"None"}, "uneven": FLAG, "pace": {"None"},
    }  # fmt: skip

    def attached(**given: Any) -> None:
        partavg.attach(**{"model": net, "optimizer": optimizer, "interval": 2, **given}).detach()

    for name, value in good.items():
        yield Call(attached, {name: value}, accepts, f"attach({name}=…)")
    averager = partavg.attach(net, optimizer, interval=2)
    yield Call(
        averager.load_state_dict, {"state": averager.state_dict()}, {}, "attach(…).load_state_dict"
    )


def privacy() -> Iterator[Call]:
    numbers = {"0.5", "1.5", "2.0", "10^30"}
    yield Call(
        partavg.Privacy,
        {"clip": 1.0, "noise": 1.1, "delta": 1e-5, "max_epsilon": 8.0, "local": False},
        {
            "clip": numbers, "noise": numbers, "delta": {"0.5"},
            "max_epsilon": {"None", *numbers}, "local": FLAG,
        },
    )  # fmt: skip
    yield Call(
        partavg.Privacy,
        {"clip": 1.0, "noise": 1.1, "quantile": 0.5, "quantile_rate": 0.2, "quantile_noise": 5.0},
        {
            "clip": numbers, "noise": {"0", *numbers}, "quantile": {"None", "0.5"},
            "quantile_rate": numbers, "quantile_noise": {"None", *numbers},
        },
    )  # fmt: skip
    yield Call(
        partavg.noise_for,
        {"epsilon": 2.0, "cycles": 2, "fraction": 1.0, "delta": 1e-3},
        {"epsilon": numbers, "fraction": {"0.5"}, "delta": {"0.5"}},
    )


def others(folder: Path) -> Iterator[Call]:
    (folder / "mine").mkdir()
    (folder / "mine" / "config.toml").write_text("")
    yield Call(partavg.load_run, {"folder": folder / "mine"})
    yield Call(
        partavg.register,
        {"kind": "model", "name": "fuzzed", "thing": lambda shape, classes: None},
        {"name": TEXT & {"a word"}, "thing": {"None"}},
    )
    yield Call(
        partavg.Table, {"rows": [{"step": 1}], "name": "mine"},
        {"rows": {"an empty list"}, "name": TEXT},
    )  # fmt: skip


def problem(call: Call, name: str, value: str) -> str:
    """What is wrong with the answer to a bad value; empty if nothing is."""
    takes = value in call.accepts.get(name, set())
    if takes and value == "10^30" and name in FOREVER:
        return ""
    try:
        signal.alarm(round(seconds(20)))
        call.function(**{**call.arguments, name: BAD[value]})
    except ValueError as error:
        said = str(error)
        if type(error) is not ValueError:
            return f"{type(error).__name__}: {said[:200]}"
        if "\n" in said or len(said) > 300 or len(said) < 12:
            return f"no sentence: {said[:200]!r}"
        return f"refused: {said}" if takes else ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    return "" if takes else "accepted"


def problems(only: str = "") -> dict[str, dict[str, str]]:
    """All that is wrong, by function and then by argument and value."""
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for call in calls(Path(folder)):
            if only not in str(call):
                continue
            wrong = found.setdefault(str(call), {})
            with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
                call.function(**call.arguments)  # or what follows would say nothing
                for name, value in itertools.product(call.arguments, BAD):
                    if said := problem(call, name, value):
                        wrong[f"{name} = {value}"] = said
    return found


def _late(*_: object) -> None:
    raise TimeoutError("it takes too long")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _late)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    json.dump(problems(*sys.argv[1:]), sys.stdout)
