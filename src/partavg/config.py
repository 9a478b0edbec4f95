"""Settings: everything that decides a run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from partavg.aggregates import AGGREGATES
from partavg.attacks import ATTACKS
from partavg.attacks.attack import Attack
from partavg.backends.client_weights import WeightsPolicy
from partavg.backends.planner import Bank, Buffers
from partavg.core.adapt import ADAPTS, Adapt
from partavg.core.pace import PACES
from partavg.core.participation import Redistribution
from partavg.core.rates import RATES
from partavg.core.solver import Solver
from partavg.core.wire_formats import Wire
from partavg.data import DATASETS
from partavg.data.dataset import Dataset
from partavg.data.gather import Store
from partavg.data.images import Normalize
from partavg.data.samples import Samples
from partavg.data.split import SPLITS
from partavg.engines.choice import EngineName
from partavg.engines.fused.precision import Precision
from partavg.losses import LOSSES, with_options
from partavg.models import MODELS
from partavg.own_code import where
from partavg.registry import Names, fitting, mismatch
from partavg.solvers import SOLVERS

LocalAccuracy = Literal["best", "mean", "first", "all"]


@dataclass(frozen=True, slots=True)
class Component:
    """A dataset, a model, a solver and the like: its name and its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Training:
    """Who trains, on how much, for how long."""

    workers: Annotated[int, Ge(1)] = 64
    batch: Annotated[int, Ge(1)] = 16
    steps: Annotated[int, Ge(1)] | None = None
    epochs: Annotated[float, Gt(0)] | None = None
    lr: Annotated[float, Gt(0)] = 0.05
    seed: Annotated[int, Ge(0)] = 0
    scale: Annotated[float, Gt(0), Le(1)] = 1.0
    validation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Of the training samples, the share that is held out and judged in place of the test set."""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What is done to images before a model sees them; crops and flips only in training."""

    normalize: Normalize = "channel"
    crop: Annotated[int, Ge(0)] = 0
    flip: bool = False


@dataclass(frozen=True, slots=True)
class ParticipationOptions:
    """How many workers are active at a time, and how they change."""

    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    every: Annotated[int, Ge(0)] = 0
    redistribution: Redistribution = "permute"
    rolling: bool = False
    bank: Bank = "device"


@dataclass(frozen=True, slots=True)
class PrivacyOptions:
    """The fields of `partavg.Privacy`; a run that gives none of them promises nothing."""

    clip: Annotated[float, Gt(0)] | None = None
    noise: Annotated[float, Ge(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] | None = None
    max_epsilon: Annotated[float, Gt(0)] | None = None
    local: bool | None = None
    quantile: Annotated[float, Gt(0), Lt(1)] | None = None
    quantile_rate: Annotated[float, Gt(0)] | None = None
    quantile_noise: Annotated[float, Gt(0)] | None = None


@dataclass(frozen=True, slots=True)
class Averaging:
    """What is averaged and when; as many parts as the interval is long unless `parts` is given."""

    interval: Annotated[int, Ge(1)] = 10
    parts: Annotated[int, Ge(1)] | None = None
    partition: str | tuple[tuple[str, ...], ...] = "channel"
    """A name, or for each part the patterns of the names of its tensors."""
    weights: WeightsPolicy | tuple[float, ...] = "uniform"
    max_weight: Annotated[float, Ge(1)] | None = None
    """How many times the median weight one client may count."""
    buffers: Buffers = "part"
    freeze_at: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Of the budget, after how much statistics are frozen, where `buffers` are."""
    local: tuple[str, ...] = ()
    """Patterns of the names of what is never averaged."""
    shuffle: bool = False
    offsets: tuple[Annotated[int, Ge(0)], ...] = ()
    """For each part the steps after which it is averaged, modulo the interval."""
    delay: Annotated[int, Ge(0)] = 0
    mix: Annotated[float, Ge(0), Lt(1)] | None = None
    """Streaming DiLoCo's α: of its own model, what a worker keeps when an average arrives."""
    wire: Wire = "full"
    """How messages are rounded."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How gradients are computed; `chunk` workers in one pass, 0 to choose."""

    name: EngineName = "auto"
    chunk: Annotated[int, Ge(0)] = 0
    precision: Precision = "auto"
    deterministic: bool = False
    device: str = "auto"
    store: Store = "auto"
    """Where the samples are kept: on the device if they fit there, else in host memory."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What is measured beside the training loss, and how often; what costs is off by default."""

    evaluate_every: Annotated[int, Ge(0)] = 50
    local_accuracy: tuple[LocalAccuracy, ...] = ()
    discrepancy_every: Annotated[int, Ge(0)] = 0
    discrepancy_parts: bool = False
    round_losses_every: Annotated[int, Ge(0)] = 0
    round_losses_samples: Annotated[int, Ge(0)] = 0
    clients_every: Annotated[int, Ge(0)] | None = None
    """Each client's own model on its own test samples; by default where something is local, as
    often as the averaged model would be."""
    timings: bool = False
    tensorboard: bool = False
    extra: tuple[Component, ...] | None = None
    """More metrics, with their options."""
    sinks: tuple[Component, ...] | None = None
    """Where the metrics go beside metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When the state of all workers is saved, and whether that of the end is kept."""

    every: Annotated[int, Ge(0)] = 100
    """Steps between checkpoints, the first before any step; 0 only when stopped and at the end."""
    final: bool = True
    best: str = ""
    """The metric by which the best averaged model is kept; empty keeps none."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that decides a run."""

    data: Component
    split: Component
    model: Component
    loss: Component
    solver: Component
    lr_schedule: Component
    pace: Component
    adapt: Component
    aggregate: Component
    attack: Component
    training: Training = Training()
    images: ImageOptions = ImageOptions()
    participation: ParticipationOptions = ParticipationOptions()
    averaging: Averaging = Averaging()
    privacy: PrivacyOptions = PrivacyOptions()
    engine: Execution = Execution()
    metrics: Metrics = Metrics()
    checkpoints: Checkpoints = Checkpoints()


COMPONENTS: dict[str, tuple[Names[Callable[..., Any]], str]] = {
    "data": (DATASETS, "fashion_subset"),
    "split": (SPLITS, "iid"),
    "model": (MODELS, "mlp"),
    "loss": (LOSSES, "cross_entropy"),
    "solver": (SOLVERS, "sgd"),
    "lr_schedule": (RATES, "constant"),
    "pace": (PACES, "even"),
    "adapt": (ADAPTS, "fixed"),
    "aggregate": (AGGREGATES, "mean"),
    "attack": (ATTACKS, "none"),
}
"""Where the components of each kind are listed, and the one taken when a recipe names none."""


_GIVEN = {
    "data": "its folder",
    "split": "the labels, the number of workers and a seed",
    "model": "the shape of an input and the number of classes, nor without",
    "loss": "outputs and targets",
    "solver": "",
    "lr_schedule": "the learning rate, the steps and the steps of an epoch",
    "pace": "the interval, the number of workers and a seed",
    "adapt": "the decays of the learning rate and a scale",
    "aggregate": "messages, weights and what they are about",
    "attack": "",
}
_OFFERED = {"data": ("root",), "model": ("shape", "classes")}
"""Arguments by name, of which a function may take some or none."""
_MADE: dict[str, tuple[str, Any]] = {
    "data": ("a partavg.data Dataset", Dataset),
    "model": ("a torch.nn.Module", nn.Module),
    "loss": ("a function of outputs and targets", Callable),
    "solver": ("a Solver", Solver),
    "lr_schedule": ("a function of the step", Callable),
    "pace": ("a function of the step, or None", Callable | None),
    "adapt": ("an Adapt, or None", Adapt | None),
    "aggregate": ("a function of messages, weights and what they are about", Callable),
    "attack": ("a partavg.attacks.Attack, or None", Attack | None),
}


_FUNCTIONS = {"solver": ("init", "step_", "encode", "decode_")}
_OF_THE_STEP = ("lr_schedule", "pace")
_CALLED = {"loss": 2, "aggregate": 3}
"""What is a function itself, of so many arguments, or a class that is made."""


def create(kind: str, component: Component, *arguments: Any) -> Any:
    """Make what a component describes."""
    names, _ = COMPONENTS[kind]
    called = f"{kind}.name = {component.name!r}"
    make = names.find(component.name, f"{kind}.name")
    options = {
        key: create("solver", value) if isinstance(value, Component) else value
        for key, value in component.options.items()
    }
    named: dict[str, Any] = {}
    if kind in _OFFERED:
        offered = dict(zip(_OFFERED[kind], arguments, strict=True))
        arguments, named = fitting(make, offered, options)
    itself = kind in _CALLED and not isinstance(make, type)
    trial = (None,) * _CALLED[kind] if itself else arguments
    if problem := mismatch(make, *trial, **named, **options):
        given = f"with {_GIVEN[kind]}" if _GIVEN[kind] else "without arguments"
        raise ValueError(f"{called} cannot be called {given}: {problem}")
    try:
        if kind in _CALLED:
            made = with_options(make, **options)
        else:
            made = make(*arguments, **named, **options)
    except Exception as error:
        if names.is_built_in(component.name):
            raise
        raise ValueError(
            f"{called} failed: {type(error).__name__}: {error}{where(error)}"
        ) from error
    if kind == "data":
        made = _dataset(made)
    wanted, types = _MADE.get(kind, ("", object))
    if not isinstance(made, types) or isinstance(made, type):
        lacks = [name for name in _FUNCTIONS.get(kind, ()) if not hasattr(made, name)]
        why = f"it lacks {', '.join(lacks)}" if lacks else "mend the function"
        raise ValueError(f"{called} gave {type(made).__name__}, and not {wanted}: {why}")
    if kind in _OF_THE_STEP and made is not None and (problem := mismatch(made, 1)):
        raise ValueError(f"{called} gave a function that does not take the step: {problem}")
    if isinstance(made, Dataset):
        made.check(component.name)
    return made


def _dataset(made: Any) -> Any:
    """A Dataset of two pairs of inputs and targets, to train and to test on; else what it is."""
    if isinstance(made, Dataset) or not _is_pair(made) or not all(map(_is_pair, made)):
        return made
    train, test = (Samples(*pair) for pair in made)
    targets = [samples.targets for samples in (train, test)]
    if not all(isinstance(labels, Tensor) and _are_labels(labels) for labels in targets):
        return Dataset(train, test)
    return Dataset(train, test, 1 + max(int(labels.max()) for labels in targets))


def _is_pair(given: object) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _are_labels(targets: Tensor) -> bool:
    return targets.ndim == 1 and len(targets) > 0 and not targets.is_floating_point()
