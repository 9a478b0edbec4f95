"""The simulator: all workers in one process, or dealt over several."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from partavg.attacks.attack import Attack
from partavg.backends.attacked import Attacked
from partavg.backends.checks import (
    check_bank,
    check_model,
    check_policies,
    check_solver,
    device_of,
    float_type,
    placed,
    rate_of,
    tried,
)
from partavg.backends.client_models import own_columns, own_tensors
from partavg.backends.client_weights import Weights, check_drawn_weights, client_weights
from partavg.backends.combinations import check_freezing, check_request, in_cycles
from partavg.backends.current_plan import CurrentPlan
from partavg.backends.cutting import Cut
from partavg.backends.description import Sections, check_state, given_settings, made_settings
from partavg.backends.evaluating import Judge
from partavg.backends.planner import Bank, Buffers, Planner, kept, what_is_shared
from partavg.backends.private import (
    by_chance,
    check_private_buffers,
    fraction_of,
    private_mean,
    spending,
)
from partavg.backends.process_states import ProcessStates
from partavg.backends.processes import OneProcess, Processes, dealt_evenly, own_workers
from partavg.backends.request import Request
from partavg.core import average
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.arguments import check_whole
from partavg.core.loop import Batch, Engine, Record, Watch, train, unwatched
from partavg.core.pace import Pace
from partavg.core.participation import Participation
from partavg.core.partition import Partition
from partavg.core.plan import Plan, check_delay
from partavg.core.poisson import Poisson
from partavg.core.reduce import accumulating
from partavg.core.schedule import Schedule
from partavg.core.settle import common_model, freeze_
from partavg.core.solver import Solver
from partavg.core.trial import check_abilities, shared_names
from partavg.core.wire_formats import Wire
from partavg.core.workers import OLD_COUNT, Workers
from partavg.data.batches import Batches
from partavg.data.convert import as_samples
from partavg.data.gather import Store, gather_from
from partavg.data.ownership import checked_split
from partavg.data.samples import Samples, as_seen, widened
from partavg.engines.choice import Choice
from partavg.engines.choose import check_engine, choose
from partavg.engines.fused.precision import Precision
from partavg.engines.model import Loss, RowModel
from partavg.evaluation import Asked, Evaluation, Transform, recompute_statistics_
from partavg.kernels import waking
from partavg.privacy.settings import Privacy
from partavg.scores.mean_loss import MeanLoss
from partavg.sentences import reason
from partavg.solvers.sgd import SGD

Augment = Callable[[Any, Tensor | None], Any]
"""(stored inputs, a key per worker to draw from, or None when evaluating) -> what a model sees."""


class Discrepancy(NamedTuple):
    """How far the workers are from their mean u: (1/m) Σ_i ‖u − x_i‖²."""

    total: float
    per_part: list[float]


class Simulation:
    """Workers that train copies of one model, each on its own samples.

    `samples` are (inputs, targets) or anything else that `as_samples` takes. They are kept on the
    device if they fit there, else in host memory; a `store` of "device" or "host" decides it.
    `split` holds the indices of each worker's samples, or masks. `lr` is a number or a function of
    the step. `weights` are "uniform", by "samples" owned, or a number per client. `buffers` says
    what becomes of BatchNorm's statistics: averaged with their "part", at "every" averaging, kept
    "local", local and "recompute"d from training samples for evaluation, or averaged with their
    part and "frozen" after step `freeze_at`: then all workers normalize by the same, also in
    training (FixBN). `local` are patterns of names, like "head.*": parameters and buffers that
    belong to no part, are never averaged and stay with their client, see docs/personal.md. With
    `participation` only some of the workers train at a time, with `pace` not all of them take every
    step; what a client that is not active keeps is in a `bank` on the "device" or the "cpu".
    `partition` is a name like "channel" or "strided", "fresh" for columns drawn anew every time, a
    `Partition`, or for each part a list of patterns of names. `delay` lets averages arrive later,
    `mix` is Streaming DiLoCo's α, see docs/streaming.md, `wire` rounds messages as that of `attach`
    does, see docs/wire-formats.md, `adapt` changes the schedule while training goes on. `aggregate`
    is what becomes of the workers' messages, by default their weighted sum; `privacy` clips them
    and adds noise, see docs/privacy.md. `transform` makes of stored samples what the model sees,
    for example `Images`. `precision` and `deterministic` are the fused engine's. The workers are
    dealt over `processes`, which all make the same calls. A client weighs at most `max_weight`
    times the median client. An `attack` lets some of them lie about their messages, see
    docs/robust.md.

    >>> from partavg import iid
    >>> x = torch.arange(40.0).view(40, 1)
    >>> split = iid(torch.zeros(40, dtype=torch.long), workers=4, seed=0)
    >>> simulation = Simulation(
    ...     nn.Linear(1, 1), nn.functional.mse_loss, (x / 40, x), split,
    ...     schedule=Schedule.partial(2), lr=0.1, batch=5,
    ... )
    >>> [record.due for record in simulation.train(until=4)]
    [(1,), (0,), (1,), (0,)]
    >>> simulation.workers.messages, len(simulation.discrepancy().per_part)
    (4, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        samples: Any,
        split: Any,
        *,
        schedule: Schedule,
        lr: float | Callable[[int], float],
        batch: int = 32,
        solver: Solver | None = None,
        partition: Cut = "channel",
        weights: Weights = "uniform",
        max_weight: float | None = None,
        buffers: Buffers = "part",
        freeze_at: int | None = None,
        local: Sequence[str] = (),
        participation: Participation | None = None,
        bank: Bank = "device",
        pace: Pace | None = None,
        delay: int = 0,
        mix: float | None = None,
        wire: Wire = "full",
        adapt: Adapt | None = None,
        aggregate: Aggregate = weighted_sum,
        attack: Attack | None = None,
        privacy: Privacy | None = None,
        transform: Augment | None = None,
        store: Store = "auto",
        engine: str = "auto",
        chunk: int = 0,
        precision: Precision = "auto",
        deterministic: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        processes: Processes | None = None,
    ) -> None:
        check_model(model, loss)
        check_policies(schedule, participation, pace, adapt, transform)
        check_engine(engine, chunk, precision, deterministic)
        check_bank(bank)
        batch, delay = check_whole("batch", batch, 1), check_whole("delay", delay, 0)
        seed = check_whole("seed", seed, 0)
        self._processes = processes or OneProcess()
        self._device = device_of(device)
        waking.begin(self._device)
        known = as_samples(samples, dtype=float_type(model))
        self.split = split = checked_split(split, known.size)
        """The indices of each worker's samples."""
        self._gather = gather_from(known, self._device, store)
        self._batches = Batches(split, batch, seed)
        self.batch = batch
        """Samples of a worker in each step."""
        self._model = RowModel(model, loss, self._device)
        self._solver = SGD() if solver is None else solver
        check_solver(self._solver)
        check_abilities(self._solver)
        check_request(
            Request(
                clients=len(split),
                schedule=schedule,
                solver=self._solver,
                participation=participation,
                partition=partition,
                weights=weights,
                buffers=buffers,
                delay=delay,
                mix=mix,
                wire=wire,
                uneven=pace is not None,
                adapt=adapt,
                aggregate=aggregate,
                attack=attack,
                privacy=privacy,
            )
        )
        participation = in_cycles(participation, schedule)
        self._attacked = Attacked(
            attack, participation, clients=len(split), seed=seed, samples=known
        )
        under_attack = self._attacked.aggregate(aggregate)
        participation = by_chance(participation) if privacy else participation
        fraction = fraction_of(participation)
        self.spending = spending(privacy, fraction, schedule)
        """What a private run costs; None where nothing is promised."""
        self._lr = rate_of(lr)
        self._recompute = buffers == "recompute"
        check_freezing(buffers, freeze_at, self._model.statistics)
        self._freeze_at, self._frozen = freeze_at, False
        self._transform = as_seen(known, placed(transform, self._device))
        self._seen = _as_evaluated(self._transform)
        near = self._model.dtype, self._device, store
        self._judge = Judge(MeanLoss(loss), self._seen, *near, self._processes)
        if participation and participation.clients != len(split):
            raise ValueError(
                f"participation counts {participation.clients} clients, the split {len(split)}: "
                f"they must be the same"
            )

        check_delay(delay, schedule, buffers)
        computed = accumulating(self._model.dtype)
        shares = client_weights(weights, split, max_weight).to(self._device, computed)
        check_drawn_weights(shares, participation)
        shares = shares / fraction  # private sums are over as many as are expected
        self.active = participation.active if participation else len(split)
        """Workers that train at a time, in all processes."""
        self._given = partial(
            given_settings,
            split=split,
            batch=batch,
            lr=lr,
            seed=seed,
            loss=loss,
            solver=self._solver,
            schedule=schedule,
            averaging={
                "partition": partition,
                "weights": weights,
                "buffers": buffers,
                "delay": delay,
                "local": local,
                "aggregate": aggregate,
                **({} if max_weight is None else {"max_weight": max_weight}),
                **({} if freeze_at is None else {"freeze_at": freeze_at}),
                **({"offsets": schedule.offsets} if schedule.offsets else {}),
                **({} if mix is None else {"mix": mix}),
                **({} if wire == "full" else {"wire": wire}),
            },
            participation=participation,
            pace=pace,
            adapt=adapt,
            attack=attack,
            privacy=privacy,
        )
        self._sharing = what_is_shared(local, self._model.params, self._model.buffers, buffers)
        self._planner = planner = Planner(
            *self._sharing,
            partition,
            buffers,
            shares,
            participation,
            pace,
            delay,
            seed,
            own_workers(self._processes, self.active),
            self._processes.swap(len(split), self.active),
            under_attack,
            self._model.counters,
            mix,
            wire,
            shared_names(self._solver),
            private=private_mean(privacy, len(split), fraction),
        )
        self._current = CurrentPlan(schedule, adapt, planner)
        if privacy:
            now = self._current.plan
            own = self._model.statistics, now.local_buffers
            check_private_buffers(now.buffer_parts, *own, participation)
        self._taken = 0, 0  # up to which step local steps are counted, and how many they are

        start, first = self._model.start(), self._batch(1)

        def trial() -> Choice:
            how = {"precision": precision, "deterministic": deterministic}
            return choose(engine, chunk, self._model, start, first, **how)  # type: ignore[arg-type]

        self.engine = self._processes.first(lambda: tried(trial, first, transform))
        self._engine_is_free = engine == "auto"
        self._engine: Engine = self.engine.build(self._model)
        self._owners: tuple[Partition | None, Tensor] = None, torch.empty(0)
        self._mean: tuple[Tensor | None, Tensor] = None, torch.empty(0)
        rows = len(self._here(np.arange(self.active)))
        params, statistics = (row.expand(rows, -1).clone() for row in start)
        self.workers = Workers.start(
            params, statistics, self._model.params, self._solver, self.schedule.parts
        )
        shared = shared_names(self._solver)
        common = shared | {OLD_COUNT}
        self._states = ProcessStates(self._processes, self.active, len(split), common)
        own = self._current.plan.local
        moves = participation is not None and participation.moves
        if participation and moves and own.params and not participation.puts_away:
            self.workers.local_taken = self.workers.taken.clone()
        if participation and (moves or (self.local and self.active < len(split))):
            names = kept(participation, self._solver, self.workers, shared, own)
            homes = dealt_evenly(len(split), self._processes.size)[self._processes.rank]
            device = self._device if bank == "device" else torch.device("cpu")
            self.workers.keep(homes.stop - homes.start, names, device, own)
        self._current.prepare_(self.workers)
        if under_attack is not weighted_sum or privacy:
            self.workers.remember_start_()

    @cached_property
    def settings(self) -> Sections:
        """What was given, as a recipe would have it; models and data by a digest of their numbers.

        Two simulations with the same settings train alike, so far as that can be seen.
        """
        made = made_settings(self._model, self.samples, self.engine, self._device)
        return {**self._given(), **made}

    @property
    def samples(self) -> Samples:
        """What all workers train on."""
        return self._gather.samples

    @property
    def store(self) -> str:
        """Where the samples are: on the "device", or in the memory of the "host"."""
        return self._gather.store

    @property
    def schedule(self) -> Schedule:
        """The schedule, as it is now."""
        return self._current.plan.schedule

    @property
    def partition(self) -> Partition:
        """The partition, as it is now."""
        return self._current.plan.partition

    def use(self, engine: Choice) -> None:
        """Compute with an engine chosen before, for the same numbers, unless one was asked for."""
        if self._engine_is_free and engine[:2] != self.engine[:2]:
            self.engine = engine
            self._build_engine()
            self.__dict__.pop("settings", None)  # they name the engine

    @property
    def local(self) -> tuple[str, ...]:
        """The names of the parameters and buffers that are each client's own."""
        params, statistics = self._sharing
        return params.own.names + statistics.own.names

    def clients(self, step: int) -> Int[np.ndarray, "m"]:
        """The worker whose samples each row here reads at a step."""
        participation = self._current.plan.participation
        return self._here(participation(step) if participation else np.arange(self.active))

    def steps_taken(self) -> int:
        """Local steps of all workers together; those that rest take none."""
        plan, (known, total) = self._current.plan, self._taken
        if plan.pace is None and not isinstance(plan.participation, Poisson):
            return self.workers.step * self.active
        for step in range(known + 1, self.workers.step + 1):
            moves = plan.moving(step)
            total += self.active if moves is None else int(moves.sum())
        self._taken = self.workers.step, total
        return total

    def affordable(self, steps: int) -> int:
        """Of so many steps, the last one that privacy allows."""
        return self.spending.last_step(steps) if self.spending else steps

    def spent(self) -> dict[str, float]:
        """What a private run has spent so far, ε (of local noise `epsilon_local`) and δ."""
        if self.spending is None:
            return {}
        key, spent = self.spending.key, self.spending.epsilon(self.workers.step)
        return {} if spent is None else {key: spent, "delta": self.spending.privacy.delta}

    def train(self, until: int, watch: Watch = unwatched) -> Iterator[Record]:
        """Train up to step `until`; yield a record after each iteration."""
        if self.spending and (last := self.affordable(until)) < until:
            raise ValueError(
                f"until = {until} would spend more than privacy.max_epsilon = "
                f"{self.spending.privacy.max_epsilon}: train up to step {last}"
            )
        try:
            yield from self._train(until, watch)
        except IndexError as error:
            if "out of " not in str(error):  # as torch says of classes and of words
                raise
            raise ValueError(
                f"step {self.workers.step + 1} met a class, or an index, that the model has no "
                f"place for ({reason(error)}): mend the samples, or make the model larger"
            ) from error

    def _freeze(self, frozen: bool) -> Plan:
        """Train with statistics that are frozen, or with those of batches; the plan until now."""
        before, self._frozen = self._frozen, frozen
        if before != frozen:
            self._build_engine()
        columns = self._model.statistics if frozen else ()
        return self._current.follow(replace(self._planner, frozen=columns))

    def _build_engine(self) -> None:
        del self._engine  # what it recorded may fill a GPU
        model = self._model
        if self._frozen:
            given = model.skeleton, model.criterion, self._device
            model = RowModel(*given, fixed_statistics=True)
        self._engine = self.engine.build(model)

    def _train(self, until: int, watch: Watch) -> Iterator[Record]:
        workers, current, reduce = self.workers, self._current, self._processes.reduce
        while workers.step < until:
            if workers.step == self._freeze_at:
                before = self._freeze(True)
                freeze_(workers, before, current.plan, reduce)
            ends = [until]
            if self._freeze_at is not None and workers.step < self._freeze_at:
                ends.append(self._freeze_at)
            current.change_(workers, self._solver, self._lr(workers.step + 1), reduce)
            for record in train(
                workers,
                self._engine,
                self._batch,
                plan=current.plan,
                solver=self._solver,
                lr=self._lr,
                until=min([*ends, current.cycle_end(workers.step)] if current.adapt else ends),
                reduce=reduce,
                watch=watch,
            ):
                losses = self._processes.ended(record.step, record.losses, self.active)
                if current.adapt:
                    current.see(workers, self.mean_loss(losses), record.lr)
                yield record._replace(losses=losses)

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """All that training changed, to save; of several processes only the first has all of it.

        If not `whole`, what clients keep is there as far as it changed since `saved` was called.
        """
        settings = {name: keys for name, keys in self.settings.items() if name != "engine"}
        return {**self._states.collect(self.workers.state(whole=whole)), "settings": settings}

    def saved(self) -> None:
        """Say that all there is now was saved, see `state`."""
        for rows in self.workers.bank.values():
            rows.saved_()

    def load(self, saved: dict[str, Any] | None) -> None:
        """Go on from what `state()` was at some step; of several processes the first brings it.

        It must be the state of a simulation like this one.
        """
        shapes = self._states.shapes(self.workers.state(whole=False))
        self._processes.first(lambda: check_state(saved, lambda: self.settings, shapes))
        state = {k: v for k, v in saved.items() if k != "settings"} if saved else None
        self.workers.load_(self._states.deal(state))
        if self._freeze_at is not None:
            self._freeze(self.workers.step > self._freeze_at)
        self._current.load(self.workers)

    def consensus(self) -> nn.Module:
        """A copy of the model that holds u, the average of all workers, in evaluation mode.

        What is local is the mean, too, which no worker ever has: see `evaluate_clients`. Where
        there is `privacy` it holds each part as it was last released, and what it had at the start.
        """
        if self.spending:
            assert self.workers.common is not None
            rows = self.workers.common, self._model.start()[1]
        else:
            rows = common_model(self.workers, self._current.plan, self._processes.reduce)
        module = self._model.module(*rows)
        if self._recompute:
            resting = self._model.resting
            recompute_statistics_(module, self.samples.inputs, self._seen, resting)
        return module

    def worker(self, row: int) -> nn.Module:
        """A copy of the model with the parameters of a worker held here, in evaluation mode."""
        return self._model.module(self.workers.params[row], self.workers.buffers[row])

    def near(self, samples: Any) -> Samples:
        """Samples where they are evaluated; who evaluates often need not send them each time.

        Of several processes each evaluates some of them: they stay where they are.
        """
        return self._judge.near(samples) if self._processes.size == 1 else as_samples(samples)

    def evaluate(self, samples: Any, metrics: Asked = ()) -> Evaluation:
        """Loss and metrics of the averaged model u; each process evaluates some samples.

        Samples are whatever `as_samples` takes.
        """
        return self._judge.all_together(self.consensus(), samples, metrics)

    def evaluate_worker(self, row: int, samples: Any, metrics: Asked = ()) -> Evaluation:
        """Loss and metrics of the model of one worker held here."""
        return self._judge.one(self.worker(row), samples, metrics)

    def evaluate_workers(
        self, samples: Any, most: int | None = None, metrics: Asked = ()
    ) -> list[Evaluation]:
        """Loss and metrics of all workers' models, or of the first few."""
        held = len(self._here(np.arange(self.active)[:most]))
        rows = self.workers.params[:held], self.workers.buffers[:held]
        return self._judge.each(self._model.modules(*rows), samples, metrics)

    def evaluate_clients(
        self, samples: Any, split: Sequence[Any], metrics: Asked = ()
    ) -> list[Evaluation | None]:
        """Loss and metrics of each client's own model on its own samples, those of the `split`.

        It is the averaged model u with what is local as the client has it, or had it when it was
        last active. None is for clients without samples. Each process evaluates some clients.
        """
        own: dict[str, Tensor] = {}
        for name, sharing in zip(("params", "buffers"), self._sharing, strict=True):
            columns = own_columns(self.workers, self._current.plan, name)
            own |= own_tensors(self._model, columns, sharing.own)
        clients = len(self.split)
        return self._judge.clients(self.consensus(), own, samples, split, clients, metrics)

    def discrepancy(self) -> Discrepancy:
        """How far the workers are apart in what they share, in total and per part.

        Attackers are left out.
        """
        columns = self.columns_apart()
        return Discrepancy(float(columns.sum()), self.per_part(columns).tolist())

    def columns_apart(self) -> Float[Tensor, "d"]:
        """The discrepancy per column, 0 in local ones, for those who do not wait for a GPU."""
        if self.spending:
            raise ValueError(
                "the distance between clients' models is not protected by privacy: leave it out"
            )
        params, weights = self.workers.params, self._weights
        if (honest := self._honest_rows()) is not None:
            params, weights = params[honest], weights[honest]
        apart = average.discrepancy(params, weights, self._processes.reduce)
        if self.partition.local:
            apart[self._owner_of_columns() == len(self.partition.parts)] = 0
        return apart

    def per_part(self, columns: Float[Tensor, "d"]) -> Float[Tensor, "p"]:
        """Sum a value per column over the columns of each part."""
        return average.per_part(columns, self._owner_of_columns(), len(self.partition.parts))

    def _owner_of_columns(self) -> Int[Tensor, "d"]:
        if self._owners[0] is not self.partition:  # which takes a while to find out
            self._owners = self.partition, self.partition.owners().to(self._device)
        return self._owners[1]

    def mean_loss(self, losses: Float[Tensor, "m"]) -> Float[Tensor, ""]:
        """The weighted mean of the workers' losses, without those of attackers."""
        if self._mean[0] is not losses:  # an interval that adapts has seen it already
            weights = self._all_weights
            self._mean = losses, weights @ losses.to(weights.dtype)
        return self._mean[1]

    def largest(self) -> Float[Tensor, "m"]:
        """The largest absolute parameter of each worker: finite if and only if all are.

        Of a private run it is that of what was released, and no worker's.
        """
        if self.spending:
            assert self.workers.common is not None
            return self.workers.common.abs().max()[None]
        norms = torch.linalg.vector_norm(self.workers.params, math.inf, dim=1)  # needs no memory
        return self._processes.values(norms, self.active)

    @property
    def _weights(self) -> Tensor:
        """p_i of the workers here that took the last step; 0 for attackers."""
        return self._all_weights[self._current.plan.rows]

    @property
    def _all_weights(self) -> Tensor:
        """The same, of all workers."""
        step = max(1, self.workers.step)
        return self._attacked.honest(self._current.plan.all_weights_at(step), step)

    def _honest_rows(self) -> list[int] | None:
        """The rows of honest workers held here; None where all count."""
        return self._attacked.honest_rows(max(1, self.workers.step), self._current.plan.rows)

    def _here(self, workers: Int[np.ndarray, "_"]) -> Int[np.ndarray, "_"]:
        """Of some value per worker, those of the workers held here."""
        return workers[self._current.plan.rows]

    def _batch(self, step: int) -> Batch:
        (inputs, targets), keys = self._gather(step, self._draw)
        targets = self._attacked.targets(widened(targets), step, self._current.plan.rows)
        return Batch(self._transform(inputs, keys), targets, keys)

    def _draw(self, step: int) -> tuple[Tensor, Tensor]:
        """The indices of all workers' samples and their keys."""
        return self._batches(step, self.clients(step))


def _as_evaluated(transform: Augment) -> Transform:
    """What a model sees when it is evaluated.

    No method of a simulation: kept by one, it would keep its rows on a GPU until the next garbage
    collection.
    """
    return lambda inputs: transform(inputs, None)
