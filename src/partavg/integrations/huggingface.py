"""Partial averaging for Hugging Face's Trainer: one callback."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from partavg.backends.distributed import Averager, attach
from partavg.integrations.options import checked, missing
from partavg.integrations.own_state import OwnState, own_tensors, read_from, write

try:
    from accelerate import Accelerator
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ModuleNotFoundError as error:  # pragma: no cover
    raise missing("huggingface", "transformers", "huggingface") from error


class PartialAveraging(TrainerCallback):
    """Lets ranks train apart, and averages a part of the model over them after every step.

    `Trainer(..., callbacks=[PartialAveraging(interval=8)])` and nothing else: started with
    torchrun, ranks train without DDP on their own share of the data. Evaluation and predictions are
    the averaged model's, and so is what is saved; beside each checkpoint every rank keeps its own
    state, from which `resume_from_checkpoint` goes on exactly. After training all ranks hold the
    averaged model, or the best one if that is loaded at the end.

    `options` are those of `partavg.attach`.
    """

    def __init__(self, *, interval: int, **options: Any) -> None:
        self._options = checked({"interval": interval, **options})
        self.averager: Averager | None = None
        """Of the training that goes on, or of the last."""
        self._own: OwnState | None = None
        self._shows_average = False
        self._known = False
        self.resumed_from: str | None = None
        """The folder of the checkpoint that training goes on from."""

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the Trainer one whose ranks train apart."""
        trainer = _trainer_being_made()
        _check(trainer)
        kind = type(trainer)
        trainer.__class__ = type(
            kind.__name__, (_RanksApart, kind), {"__module__": kind.__module__}
        )
        trainer.partial_averaging = self
        _train_apart(trainer.accelerator)
        # Ranks would tell each other their number of tokens at every step.
        args.average_tokens_across_devices = False
        self._known = True

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any
    ) -> None:
        """Begin to average, with the ranks' own states if training is resumed."""
        if not self._known:
            raise ValueError(
                "PartialAveraging was added to a Trainer that exists already, which trains with "
                "DDP: give it to the Trainer as it is made, Trainer(..., callbacks=[...])"
            )
        self.leave()
        scaler = getattr(optimizer, "scaler", None)
        options = {"scaler": scaler, **self._options} if scaler else self._options
        self.averager = attach(model, optimizer, **options)
        self._own = OwnState(model, [optimizer], self.averager, scaler)
        if self.resumed_from:
            self._own.load(read_from(self.resumed_from))

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        """Give all ranks the averaged model, unless the best one was loaded."""
        assert self.averager
        best = args.load_best_model_at_end and state.best_model_checkpoint
        loaded = {name: tensor.clone() for name, tensor in own_tensors(model).items() if best}
        self.averager.consensus()
        self.leave()
        with torch.no_grad():
            for name, tensor in loaded.items():
                own_tensors(model)[name].copy_(tensor)

    def leave(self, error: BaseException | None = None) -> None:
        """End a training, wherever it is."""
        own, self._own = self._own, None
        if own and error:
            own.averager.__exit__(type(error), error, error.__traceback__)
        elif own:
            own.averager.detach()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged model in the place of the rank's own, while training goes on."""
        if self._own is None or self._shows_average:
            yield
            return
        self._shows_average = True
        try:
            with self._own.averager.averaged():
                yield
        finally:
            self._shows_average = False

    def save_own(self, folder: str) -> None:
        """Save what this rank needs to go on, beside a checkpoint."""
        if self._own:
            write(self._own, folder)

    def scalars(self) -> dict[str, float]:
        """The averager's `stats` of this rank, to be logged."""
        stats = self._own.averager.stats() if self._own else {}
        return {
            f"partavg/{name}": value
            for name, value in stats.items()
            if not name.startswith("rank")  # each rank could say the same of all
        }


class _RanksApart(Trainer):
    """What a Trainer does otherwise: all of it in methods that are meant to be overridden."""

    partial_averaging: PartialAveraging

    def create_accelerator_and_postprocess(self) -> None:
        """A search of hyperparameters makes another one for each trial."""
        super().create_accelerator_and_postprocess()
        _train_apart(self.accelerator)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self.partial_averaging.resumed_from = folder or None
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        except BaseException as error:
            self.partial_averaging.leave(error)
            raise

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self.partial_averaging.averaged():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self.partial_averaging.averaged():
            return super().predict(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with self.partial_averaging.averaged():
            super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir and not self.args.save_only_model:  # a checkpoint
            self.partial_averaging.save_own(output_dir)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs.update(self.partial_averaging.scalars())
        super().log(logs, *args, **kwargs)


def _trainer_being_made() -> Any:
    """The Trainer that tells its callbacks that it is made; it does not tell them who it is."""
    frame = inspect.currentframe()
    while frame:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            return found
        frame = frame.f_back
    raise ValueError(
        "PartialAveraging.on_init_end is for a Trainer to call: Trainer(callbacks=[…])"
    )


def _train_apart(accelerator: Accelerator) -> None:
    """Let the accelerator prepare models as for evaluation: autocast and compile, but no DDP."""
    accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)


def _check(trainer: Any) -> None:
    """Raise a ValueError for a Trainer whose ranks cannot train apart."""
    sharding = {"DeepSpeed": trainer.is_deepspeed_enabled, "FSDP": trainer.is_fsdp_enabled}
    for name, given in sharding.items():
        if given:
            raise ValueError(
                f"{name} shards one model over all ranks of this Trainer, and PartialAveraging "
                f"averages whole ones: leave {name} out, or use partavg.attach with a mesh in a "
                f"loop of your own"
            )
