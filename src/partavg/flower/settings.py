"""The settings of a Flower app, from its run config: the keys of a recipe, and `flower`."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from torch import nn

from partavg import build
from partavg.backends.client_weights import check_cap, client_weights
from partavg.backends.combinations import check_request
from partavg.backends.cutting import draws_columns
from partavg.backends.planner import Planner, what_is_shared
from partavg.backends.private import check_private_buffers, private_mean, spending
from partavg.combinations import check_shown
from partavg.config import Config, create
from partavg.config_toml import dump_sections, parse, section
from partavg.core.abilities import abilities
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.rates import Rate
from partavg.core.seeds import fold, seeded
from partavg.core.trial import shared_names
from partavg.engines.model import Loss, RowModel
from partavg.evaluation import scores_of
from partavg.flower.identity import keys_of_clients
from partavg.flower.protocol import Agreement
from partavg.flower.rules import Rules
from partavg.metrics.metric import Metric
from partavg.metrics.table import METRICS
from partavg.named import anchored
from partavg.privacy.secret import secret_normal
from partavg.privacy.spending import Spending
from partavg.scores.score import Score

SECTIONS = (
    "training",
    "averaging",
    "aggregate",
    "privacy",
    "solver",
    "lr_schedule",
    "participation",
    "metrics",
)
"""Those of a recipe that a Flower app has; what they hold is in docs/recipes.md."""

OWN = "app"
"""The section that belongs to the user."""


@dataclass(frozen=True, slots=True)
class Federation:
    """What only a federation has."""

    job: str = "federation"
    folder: str = ""
    resume: bool = False
    local_steps: Annotated[int, Ge(1)] | None = None
    min_clients: Annotated[int, Ge(1)] | None = None
    first: Annotated[float, Gt(0)] | None = None
    deadline: Annotated[float, Gt(0)] = 300.0
    wait: Annotated[float, Ge(0)] = 60.0
    patience: Annotated[float, Ge(0)] = 600.0
    catch_up: Literal["parts", "whole"] = "parts"
    rest: Annotated[float, Ge(0)] = 3600.0
    keys: str = ""
    max_samples: Annotated[int, Ge(1)] = 10_000_000
    max_weight: Annotated[float, Ge(0)] = 10.0
    max_change: Annotated[float, Ge(0)] = 100.0

    def __post_init__(self) -> None:
        check_cap(self.max_weight or None, "flower.max_weight")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", self.job):
            raise ValueError(
                f"flower.job = {self.job!r} names files on every node: use up to 64 letters, "
                f"digits, '-', '_' and '.', a letter or digit first"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of an app, checked."""

    config: Config
    flower: Federation = field(default_factory=Federation)

    @classmethod
    def read(cls, run_config: Mapping[str, Any], folder: Path | None = None) -> "Settings":
        """From a run config; any mistake is a ValueError of one sentence.

        Python files that it names are looked for in a folder, that of the app.
        """
        return _read(json.dumps(dict(run_config), sort_keys=True), folder or Path.cwd())

    @property
    def folder(self) -> Path:
        """The run folder, on the server."""
        return Path(self.flower.folder or f"runs/{self.flower.job}").expanduser().resolve()

    @property
    def local_steps(self) -> int:
        """Steps between two exchanges."""
        schedule = build.schedule(self.config)
        return schedule.interval // schedule.parts

    @property
    def steps(self) -> int:
        """The budget."""
        assert self.config.training.steps is not None
        return self.config.training.steps

    @property
    def rate(self) -> Rate:
        """The learning rate of each step."""
        lengths = {"steps": Fraction(1)}
        try:
            rate: Rate = create(
                "lr_schedule", self.config.lr_schedule, self.config.training.lr, self.steps, lengths
            )
        except KeyError:
            raise ValueError(
                "lr_schedule.unit = 'epochs' cannot be used: the server does not know how long an "
                "epoch of all clients is; use steps"
            ) from None
        return rate

    @property
    def asked(self) -> tuple[Metric, ...]:
        """The metrics of outputs and targets that are asked for."""
        return METRICS.asked(self.config.metrics.extra or ())

    @property
    def scores(self) -> tuple[Score, ...]:
        """What is measured on test samples beside the loss, on the server and on clients."""
        return tuple(scores_of(self.asked))

    def rules(self, *, tests: bool) -> Rules:
        """Who may take part, and how long the others wait; whether the server has `tests`."""
        flower, workers = self.flower, self.config.training.workers
        metrics = self.config.metrics
        every = metrics.clients_every
        if every is None:
            own = bool(self.config.averaging.local)
            private = build.privacy(self.config) is not None  # and test samples are not protected
            every = 0 if private or (tests and not own) else metrics.evaluate_every
        return Rules(
            clients=workers,
            min_clients=flower.min_clients or min(2, self._active),
            first=flower.first,
            deadline=flower.deadline,
            wait=flower.wait,
            patience=flower.patience,
            rest=flower.rest,
            catch_up=flower.catch_up,
            weights=self.config.averaging.weights,
            max_samples=flower.max_samples,
            max_weight=flower.max_weight,
            max_change=flower.max_change,
            keys=self._keys(),
            evaluate_every=every,
            scores=self.scores,
        )

    def _keys(self) -> dict[int, tuple[str, ...]] | None:
        """Which keys clients may have, if the server says."""
        if not self.flower.keys:
            return None
        keys = keys_of_clients(Path(self.flower.keys).expanduser())
        missing = set(range(self.config.training.workers)) - keys.keys()
        if missing:
            raise ValueError(
                f"flower.keys = {self.flower.keys!r} has no key of client {min(missing)}: give "
                f"one to each of training.workers = {self.config.training.workers} clients"
            )
        return keys

    def agreement(
        self,
        model: Callable[[], nn.Module],
        loss: Loss,
        device: torch.device,
        aggregate: Aggregate = weighted_sum,
    ) -> Agreement:
        """What the server and all clients agree on; the model begins as the seed says.

        An aggregate that is given here is one that settings do not name.
        """
        named = build.aggregate(self.config)
        if aggregate is not weighted_sum and named is not weighted_sum:
            raise ValueError(
                f"aggregate.name = {self.config.aggregate.name!r}, and server_app has an aggregate "
                f"of its own: leave one of them out"
            )
        aggregate = named if aggregate is weighted_sum else aggregate
        training, averaging = self.config.training, self.config.averaging
        with seeded(fold(training.seed, "model"), torch.device("cpu")):
            rows = RowModel(model(), loss, device)
        who, promised = build.participation(self.config), build.privacy(self.config)
        private = private_mean(promised, training.workers, self._fraction)
        planner = Planner(
            *what_is_shared(averaging.local, rows.params, rows.buffers, averaging.buffers),
            averaging.partition,
            averaging.buffers,
            torch.ones(1),
            who,
            seed=training.seed,
            aggregate=aggregate,
            shared=shared_names(build.solver(self.config)),
            private=private and replace(private, draw=secret_normal),
        )
        if rows.counters and rows.dtype.itemsize < 4 and averaging.buffers != "local":
            raise ValueError(
                f"the model's buffers hold whole numbers, which cannot be counted in messages of "
                f"{rows.dtype}: use averaging.buffers = 'local', or train in float32"
            )
        solver = build.solver(self.config)
        self._check_request(aggregate)
        plan = planner(build.schedule(self.config))
        if private:
            check_private_buffers(plan.buffer_parts, rows.statistics, plan.local_buffers, who)
        return Agreement(rows, plan, solver)

    @property
    def spending(self) -> Spending | None:
        """What a private run promises; None where nothing is."""
        schedule = build.schedule(self.config)
        return spending(build.privacy(self.config), self._fraction, schedule)

    @property
    def _fraction(self) -> float:
        """Of all clients, those that a private run draws."""
        who = build.participation(self.config)
        return who.active / who.clients if who else 1.0

    def _check_request(self, aggregate: Aggregate) -> None:
        """Raise a ValueError for what does not go together, or not with what it promises."""
        asked = replace(build.request(self.config), aggregate=aggregate)
        check_request(asked)
        promised, averaging = asked.privacy, self.config.averaging
        if promised:
            check_shown(self.config.metrics, averaging.local)
        if promised and not promised.local and self.flower.first is not None:
            raise ValueError(
                f"flower.first = {self.flower.first:g} lets the answer of one client push out that "
                f"of another, which privacy does not count: leave one of them out"
            )

    def dump(self) -> str:
        """The TOML text of the settings."""
        sections = {name: getattr(self.config, name) for name in SECTIONS}
        return dump_sections({**sections, "flower": self.flower})

    @property
    def _active(self) -> int:
        who = build.participation(self.config)
        return who.active if who else self.config.training.workers

    def _check(self) -> None:
        training, averaging = self.config.training, self.config.averaging
        build.schedule(self.config)  # refuses parts that do not divide the interval
        if training.epochs is not None or training.scale != 1:
            raise ValueError(
                "training.epochs and training.scale need all samples in one place: use "
                "training.steps"
            )
        if averaging.delay or averaging.buffers in ("recompute", "frozen"):
            raise ValueError(
                f"averaging.delay = {averaging.delay} and averaging.buffers = "
                f"{averaging.buffers!r} cannot be used with Flower: use delay = 0, and part, every "
                f"or local"
            )
        if averaging.offsets or averaging.mix is not None or draws_columns(averaging.partition):
            raise ValueError(
                "averaging.offsets, averaging.mix and averaging.partition = 'fresh' cannot be used "
                "with Flower, whose clients are asked for one part at a time: leave them out"
            )
        if averaging.max_weight is not None:
            raise ValueError(
                f"averaging.max_weight = {averaging.max_weight} is flower.max_weight here, where "
                f"clients tell how many samples they have: set that"
            )
        if averaging.wire != "full":
            raise ValueError(
                f"averaging.wire = {averaging.wire!r} cannot be used with Flower, whose clients "
                f"come and go with what rounding lost: use full"
            )
        for metric in self.asked:
            if not metric.sums:
                raise ValueError(
                    f"metrics.extra = {metric.key!r} cannot be measured: the server has no "
                    f"simulation; leave it out"
                )
        if not (self.flower.min_clients or 1) <= self._active:
            raise ValueError(
                f"flower.min_clients = {self.flower.min_clients} is more than the {self._active} "
                f"clients that are active: use 1 to {self._active}"
            )
        first = self.flower.first
        if first is not None and first > 1 and first != int(first):
            raise ValueError(
                f"flower.first = {first} is no number of clients: use a whole one, or a fraction "
                f"below 1"
            )
        least = self.flower.min_clients or min(2, self._active)
        if first is not None and first >= 1 and not least <= first <= self._active:
            raise ValueError(
                f"flower.first = {first:g} is not between flower.min_clients = {least} and the "
                f"{self._active} clients that are active"
            )
        self._check_request(build.aggregate(self.config))
        self._check_weights()
        self._check_participation()
        self.rate(1)

    def _check_weights(self) -> None:
        weights, clients = self.config.averaging.weights, self.config.training.workers
        shares = client_weights(weights, [torch.zeros(1)] * clients)
        if not shares.all():
            raise ValueError(
                f"averaging.weights = {list(weights)} has a 0, and those who answer may be such "
                f"clients only: use numbers above 0"
            )

    def _check_participation(self) -> None:
        who = build.participation(self.config)
        if not who or not who.moves:
            return
        for key, value in (("participation.every", who.every), ("training.steps", self.steps)):
            if value % self.local_steps:
                raise ValueError(
                    f"{key} = {value} is not a multiple of the {self.local_steps} steps between "
                    f"two exchanges: clients can change only there"
                )
        made = build.solver(self.config)
        if who.redistribution == "average" and abilities(made).keeps_apart:
            raise ValueError(
                f"solver.name = {self.config.solver.name!r} keeps clients apart, and "
                f"participation.redistribution = 'average' makes them the same: use permute, or "
                f"solver.keep = 0"
            )
        changing = shared_names(made) - set(abilities(made).constant)
        if who.redistribution == "none" and changing:
            raise ValueError(
                f"solver.name = {self.config.solver.name!r} needs what all clients have in common, "
                f"which a client that pauses misses with participation.redistribution = 'none': "
                f"use permute or average"
            )


@lru_cache(maxsize=8)  # a process of the simulation runtime gets a message per exchange and client
def _read(run_config: str, folder: Path) -> Settings:
    tables = anchored(_nested(json.loads(run_config)), folder)
    federation: Federation = section(tables.pop("flower", {}), Federation, "flower")
    tables["averaging"] = _interval(tables.get("averaging", {}), federation.local_steps)
    settings = Settings(parse(tables), federation)
    settings._check()
    return settings


def _nested(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Tables from dotted keys; names without a dot and those in `app` are the user's own."""
    tables: dict[str, Any] = {}
    for key, value in run_config.items():
        first, *rest = key.split(".")
        if not rest or first == OWN:
            continue
        if first not in (*SECTIONS, "flower"):
            known = ", ".join((*SECTIONS, "flower", OWN))
            raise ValueError(f"section {first!r} of {key!r} is not known: use {known}")
        table = tables.setdefault(first, {})
        for name in rest[:-1]:
            table = table.setdefault(name, {})
        table[rest[-1]] = _listed(value)
    return tables


def _listed(value: Any) -> Any:
    """A list, which a run config cannot hold, may be written as text."""
    if isinstance(value, str) and value.startswith("["):
        try:
            return tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            return value
    return value


def _interval(averaging: dict[str, Any], local_steps: int | None) -> dict[str, Any]:
    """The interval that so many local steps between two exchanges make."""
    if local_steps is None:
        return averaging
    parts, interval = averaging.get("parts", 1), averaging.get("interval")
    if not isinstance(parts, int):
        return averaging  # parse will say so
    if interval not in (None, parts * local_steps):
        raise ValueError(
            f"flower.local_steps = {local_steps} and averaging.parts = {parts} make an interval of "
            f"{parts * local_steps}, and averaging.interval = {interval}: leave one of them out"
        )
    return {**averaging, "parts": parts, "interval": parts * local_steps}
