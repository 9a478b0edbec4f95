"""From a config to what it describes."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn

from partavg.attacks.attack import Attack
from partavg.backends.attacked import Attacked
from partavg.backends.checks import device_of
from partavg.backends.combinations import check_freezing, check_request
from partavg.backends.cutting import cut_of
from partavg.backends.planner import what_is_shared
from partavg.backends.processes import Processes
from partavg.backends.request import Request
from partavg.backends.simulate import Augment, Simulation
from partavg.combinations import check_images, check_shown, check_words, has_images
from partavg.config import Config, Metrics, create
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate
from partavg.core.inputs import call, tensors
from partavg.core.pace import Pace
from partavg.core.participation import Participation
from partavg.core.plan import check_delay
from partavg.core.rates import Rate, nearest
from partavg.core.schedule import Schedule
from partavg.core.seeds import fold, seeded
from partavg.core.solver import Solver
from partavg.core.trial import check_abilities
from partavg.data.batches import Batches
from partavg.data.dataset import Dataset
from partavg.data.images import Images
from partavg.data.ownership import Split, checked_split, class_counts
from partavg.data.samples import as_seen, shapes, widened
from partavg.data.split import BY_CLIENT, BY_LABEL
from partavg.data.test_split import split_alike, split_by_owner
from partavg.engines.model import Loss, RowModel
from partavg.own_code import where
from partavg.privacy.settings import Privacy
from partavg.sentences import reason
from partavg.sinks import chosen

_SCALED_TRAIN = 64  # samples per worker that a scaled run keeps at least
_SCALED_TEST = 1000


def steps(config: Config, data: Dataset) -> int:
    """The budget in steps; an epoch is as many as it takes to see as many samples as there are."""
    training, length = config.training, _lengths(config, data)
    if training.epochs is not None:
        return max(1, nearest(training.epochs, length["epochs"]))
    assert training.steps is not None
    return max(1, nearest(training.steps, length["steps"]))


def freeze_at(config: Config, data: Dataset) -> int | None:
    """The step after which statistics are frozen; None where they never are."""
    if config.averaging.buffers != "frozen":
        return None
    return max(1, nearest(config.averaging.freeze_at, Fraction(steps(config, data))))


def scaled(config: Config, data: Dataset) -> Dataset:
    """The data of a run: less of it in a scaled trial, a part of it held out for validation."""
    if config.training.validation:
        data = data.held_out(config.training.validation)
    scale = config.training.scale
    if scale == 1:
        return data
    train, test = (round(scale * samples.size) for samples in (data.train, data.test))
    return data.reduced(
        max(train, _SCALED_TRAIN * config.training.workers), max(test, _SCALED_TEST)
    )


def metrics(config: Config) -> Metrics:
    """What is measured; a scaled run is evaluated as often as the whole one would be."""
    options, scale = config.metrics, Fraction(str(config.training.scale))
    private = privacy(config) is not None
    if private:
        check_shown(options, config.averaging.local)

    def scaled_down(every: int) -> int:
        return max(1, nearest(every, scale)) if every else 0

    clients_every = options.clients_every
    if clients_every is None:
        clients_every = options.evaluate_every if config.averaging.local and not private else 0
    return replace(
        options,
        evaluate_every=scaled_down(options.evaluate_every),
        clients_every=scaled_down(clients_every),
    )


def rate(config: Config, data: Dataset) -> Rate:
    """The learning rate of each step."""
    arguments = config.training.lr, steps(config, data), _lengths(config, data)
    made: Rate = create("lr_schedule", config.lr_schedule, *arguments)
    first: object = made(1)
    if isinstance(first, bool) or not isinstance(first, int | float) or not isfinite(first):
        raise ValueError(
            f"lr_schedule.name = {config.lr_schedule.name!r} gave {first!r} for the first step: "
            f"give a learning rate, a number"
        )
    return made


def schedule(config: Config) -> Schedule:
    """When which part is averaged."""
    averaging = config.averaging
    assert averaging.parts is not None
    shuffle = config.training.seed if averaging.shuffle else None
    return Schedule(averaging.interval, averaging.parts, shuffle, offsets=averaging.offsets)


def participation(config: Config) -> Participation | None:
    """Who is active when; None where everybody always is and keeps what is theirs."""
    options, workers = config.participation, config.training.workers
    active = max(1, nearest(options.fraction, Fraction(workers)))
    if active == workers and not options.every:
        return None
    return Participation(
        workers,
        active,
        options.every,
        options.redistribution,
        config.training.seed,
        config.averaging.interval,
        options.rolling,
    )


def privacy(config: Config) -> Privacy | None:
    """What is promised; None where nothing is."""
    given = {key: value for key, value in asdict(config.privacy).items() if value is not None}
    for key in ("clip", "noise"):
        if given and key not in given:
            raise ValueError(f"privacy.{key} is missing, and has no default: give it")
    return Privacy(**given) if given else None


def pace(config: Config) -> Pace | None:
    """Who takes which steps; None where everybody takes all."""
    training = config.training
    arguments = config.averaging.interval, training.workers, training.seed
    who: Pace | None = create("pace", config.pace, *arguments)
    mask: object = who(1) if who else None
    known = isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == arguments[1:2]
    if who and not known:
        raise ValueError(
            f"pace.name = {config.pace.name!r} must give an array of {training.workers} truth "
            f"values for a step, who takes it: mend the function"
        )
    return who


def adapt(config: Config, data: Dataset) -> Adapt | None:
    """How the schedule changes; None where it does not."""
    decays = getattr(rate(config, data), "at", ())
    policy: Adapt | None = create("adapt", config.adapt, decays, _lengths(config, data)["steps"])
    return policy


def solver(config: Config) -> Solver:
    """The local solver, if it goes with the other settings."""
    made: Solver = create("solver", config.solver)
    check_abilities(made)
    return made


def aggregate(config: Config) -> Aggregate:
    """What becomes of the workers' messages."""
    made: Aggregate = create("aggregate", config.aggregate)
    return made


def attack(config: Config) -> Attack | None:
    """Who attacks, and how; None where nobody does."""
    made: Attack | None = create("attack", config.attack)
    if made:
        made.attackers(config.training.workers, config.training.seed)
    return made


def loss(config: Config) -> Loss:
    """What training makes small."""
    made: Loss = create("loss", config.loss)
    return made


def split(config: Config, data: Dataset) -> Split:
    """Which worker owns which training samples of `scaled` data."""
    by: Tensor | None = tensors(data.train.targets)[0]
    if config.split.name in BY_CLIENT:
        by = data.writers
    if by is None:
        raise ValueError(
            f"split.name = {config.split.name!r} needs to know whose a sample is, and "
            f"{config.data.name} does not: use femnist, another split, or a Dataset with writers"
        )
    if config.split.name in BY_LABEL and data.train.tokens is not None:
        raise ValueError(
            f"split.name = {config.split.name!r} deals out classes of samples, and the texts of "
            f"{config.data.name} have none: use iid, by_quantity or by_client"
        )
    workers = config.training.workers
    owned = create("split", config.split, by, workers, config.training.seed)
    called = f"split.name = {config.split.name!r}"
    return checked_split(owned, data.train.size, workers, called)


def test_split(config: Config, full: Dataset) -> Split:
    """Which client owns which test samples of `scaled` data: as it owns training samples."""
    data = scaled(config, full)
    owned, writers = split(config, data), data.writers
    if config.split.name in BY_CLIENT and writers is not None and data.test_writers is not None:
        return split_by_owner(writers, owned, data.test_writers)
    return split_alike(data.train.classes, owned, data.test.classes, config.training.seed)


def label_counts(config: Config, full: Dataset) -> list[list[int]]:
    """How many training samples of each class each worker owns; none where there are no classes."""
    data = scaled(config, full)
    if not data.classes:
        return []
    return class_counts(data.train, split(config, data), data.classes)


def simulation(
    config: Config, full: Dataset, device: torch.device, processes: Processes | None = None
) -> Simulation:
    """The simulation that a config describes, before its first step."""
    training, averaging = config.training, config.averaging
    data = scaled(config, full)
    return Simulation(
        _model(config, data),
        loss(config),
        data.train,
        split(config, data),
        schedule=schedule(config),
        lr=rate(config, full),
        batch=training.batch,
        solver=solver(config),
        partition=averaging.partition,
        weights=averaging.weights,
        max_weight=averaging.max_weight,
        buffers=averaging.buffers,
        freeze_at=freeze_at(config, full),
        local=averaging.local,
        participation=participation(config),
        bank=config.participation.bank,
        pace=pace(config),
        delay=averaging.delay,
        mix=averaging.mix,
        wire=averaging.wire,
        adapt=adapt(config, full),
        aggregate=aggregate(config),
        attack=attack(config),
        privacy=privacy(config),
        transform=transform(config, data),
        store=config.engine.store,
        engine=config.engine.name,
        chunk=config.engine.chunk,
        precision=config.engine.precision,
        deterministic=config.engine.deterministic,
        seed=training.seed,
        device=device,
        processes=processes,
    )


def transform(config: Config, data: Dataset) -> Augment | None:
    """What the model sees of stored images; None where samples are seen as they are."""
    check_images(config, data)
    if not has_images(data):
        return None
    options = config.images
    return Images.fit(
        data.train.inputs,
        normalize=options.normalize,
        crop=options.crop,
        flip=options.flip,
    )


def request(config: Config, policy: Adapt | None = None) -> Request:
    """What is asked of a run, with the policy that changes its schedule."""
    averaging = config.averaging
    return Request(
        clients=config.training.workers,
        schedule=schedule(config),
        solver=solver(config),
        participation=participation(config),
        partition=averaging.partition,
        weights=averaging.weights,
        buffers=averaging.buffers,
        delay=averaging.delay,
        mix=averaging.mix,
        wire=averaging.wire,
        uneven=pace(config) is not None,
        adapt=policy,
        aggregate=aggregate(config),
        attack=attack(config),
        privacy=privacy(config),
        called=f"solver.name = {config.solver.name!r}",
    )


def check(config: Config, full: Dataset) -> None:
    """Raise a ValueError for whatever would stop a run of this config from starting."""
    training, averaging = config.training, config.averaging
    data = scaled(config, full)
    parts = schedule(config).parts
    check_delay(averaging.delay, schedule(config), averaging.buffers)
    Batches(split(config, data), training.batch, training.seed)
    rate(config, full)
    participation(config)
    pace(config)
    solver(config)
    policy = adapt(config, full)
    check_request(request(config, policy))
    Attacked(
        attack(config),
        participation(config),
        clients=training.workers,
        seed=training.seed,
        samples=data.train,
    )
    if policy:
        policy.first(schedule(config))
    rows = RowModel(_model(config, data), loss(config), torch.device("cpu"))
    own = averaging.local, rows.params, rows.buffers, averaging.buffers
    params, _ = what_is_shared(*own)
    check_freezing(averaging.buffers, freeze_at(config, full), rows.statistics)
    cut_of(params, averaging.partition, parts, training.seed)
    check_images(config, data)
    chosen(metrics(config))
    device(config)


def device(config: Config, processes: Processes | None = None) -> torch.device:
    """Where to compute; the ranks of a machine share its GPUs, one for each."""
    name = config.engine.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if processes is None or processes.size == 1:
            return torch.device(name)
    if processes and processes.size > 1 and name.startswith("cuda"):
        name = f"cuda:{processes.local_rank}"
    found = device_of(name, "engine.device =")  # as it is called: a run is resumed by that name
    if found.type == "cuda" and processes and processes.size > 1:
        torch.cuda.set_device(found)  # kernels and collectives go there by default
    return found


def _lengths(config: Config, data: Dataset) -> Mapping[str, Fraction]:
    """How many steps a unit of time takes; a scaled run shortens every unit."""
    who = participation(config)
    active = who.active if who else config.training.workers
    scale = Fraction(str(config.training.scale))
    epoch = Fraction(data.train.size, active * config.training.batch)
    return {"steps": scale, "epochs": scale * epoch}


def _model(config: Config, data: Dataset) -> nn.Module:
    """The model, initialized as the seed says."""
    check_words(config, data)
    with seeded(fold(config.training.seed, "model"), torch.device("cpu")):
        try:
            model: nn.Module = create("model", config.model, data.shape, data.classes)
        except TypeError as error:
            raise ValueError(
                f"model.name = {config.model.name!r} cannot be made for inputs "
                f"{shapes(data.train.inputs, first=1)} and {_classes(data)}: {error}"
            ) from error
        _check_fit(copy.deepcopy(model), config, data)
    return model


def _check_fit(model: nn.Module, config: Config, data: Dataset) -> None:
    """Raise a ValueError if a model, a copy, cannot read the samples, or say their classes."""
    few = data.train.some(slice(2))
    seen = few.inputs.float() if has_images(data) else as_seen(few)(few.inputs, None)
    targets = widened(few.targets)
    if few.labels is not None and isinstance(targets, Tensor) and data.classes:
        targets = torch.full_like(targets, data.classes - 1)
    try:
        with torch.no_grad():
            found = loss(config)(call(model.eval(), seen), targets)
    except Exception as error:
        raise ValueError(
            f"model.name = {config.model.name!r} cannot be trained on {config.data.name}, with "
            f"inputs {shapes(data.train.inputs, first=1)} and {_classes(data)}, by "
            f"{config.loss.name}: {reason(error)}{where(error)}"
        ) from error
    if not isinstance(found, Tensor) or found.ndim or not found.is_floating_point():
        shape = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise ValueError(
            f"loss.name = {config.loss.name!r} gave {shape} for a batch: return the mean, a tensor "
            f"that holds one number"
        )


def _classes(data: Dataset) -> str:
    return f"{data.classes} classes" if data.classes else "no classes"
