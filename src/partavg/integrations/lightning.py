"""Partial averaging for Lightning's Trainer: a strategy in the place of DDP's."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from partavg.backends.distributed import Averager, attach
from partavg.integrations.options import checked, missing
from partavg.integrations.own_state import OwnState, rank

try:
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ModuleNotFoundError:  # pragma: no cover
    try:
        from pytorch_lightning.strategies import DDPStrategy
        from pytorch_lightning.trainer.states import TrainerFn
    except ModuleNotFoundError as error:
        raise missing("lightning", "Lightning", "lightning") from error

_OF_PROCESSES = (
    "accelerator",
    "parallel_devices",
    "cluster_environment",
    "checkpoint_io",
    "precision_plugin",
    "process_group_backend",
    "timeout",
    "start_method",
)
"""What DDPStrategy takes and has nothing to do with its gradients."""


class PartialAveragingStrategy(DDPStrategy):
    """Lets ranks train apart, and averages a part of the model over them after every step.

    `Trainer(strategy=PartialAveragingStrategy(interval=8), devices=2)`: processes and samplers are
    those of DDPStrategy, but the model is not wrapped. Validation is the averaged model's, and so
    is what is saved; beside each checkpoint every rank keeps its own state, from which
    `fit(ckpt_path=…)` goes on exactly. After training all ranks hold the averaged model.

    `options` are those of `partavg.attach`, and of DDPStrategy those that concern processes.
    """

    def __init__(self, *, interval: int, **options: Any) -> None:
        super().__init__(**{name: options.pop(name) for name in _OF_PROCESSES if name in options})
        self._options = checked({"interval": interval, **options})
        self.averager: Averager | None = None
        """Of the training that goes on, or of the last."""
        self._own: OwnState | None = None
        self._view: AbstractContextManager[Any] | None = None
        self._resumed_from: Any = None

    def setup_environment(self) -> None:
        """Begin a run, which knows of no checkpoint yet."""
        self._resumed_from = None
        super().setup_environment()

    def configure_ddp(self) -> None:
        """Leave the model as it is: no gradients are exchanged."""

    def setup(self, trainer: Any) -> None:
        """Make all ranks alike, and average from the first step on."""
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            module, scaler = self.lightning_module, getattr(self.precision_plugin, "scaler", None)
            options = {"scaler": scaler, **self._options} if scaler else self._options
            self.averager = attach(module, self.optimizers or None, **options)
            self._own = OwnState(module, self.optimizers, self.averager, scaler)

    def on_train_start(self) -> None:
        """Go on from the rank's own state, if training is resumed."""
        if self._own and self._resumed_from:
            self._own.load(self._read)

    def on_validation_start(self) -> None:
        """Show the averaged model."""
        if self._own:
            self._view = self._own.averager.averaged()
            self._view.__enter__()

    def on_validation_end(self) -> None:
        """Go back to the rank's own model."""
        view, self._view = self._view, None
        if view:
            view.__exit__(None, None, None)

    def on_train_end(self) -> None:
        """Give all ranks the averaged model."""
        if self._own:
            self._own.averager.consensus()
        self._leave()

    def on_exception(self, exception: BaseException) -> None:
        """Let the other ranks know."""
        own, self._own, self._view = self._own, None, None
        if own:
            own.averager.__exit__(type(exception), exception, exception.__traceback__)
        super().on_exception(exception)

    def teardown(self) -> None:
        """Leave the optimizers as they were."""
        self._leave()
        super().teardown()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The averaged model, copied, since each rank goes on with its own."""
        if self._own is None:
            state: dict[str, Any] = super().lightning_module_state_dict()
            return state
        with self._own.averager.averaged() if self._view is None else nullcontext():
            state = super().lightning_module_state_dict()
            return {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in state.items()
            }

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Write the checkpoint, by the first rank, and beside it each rank's own state."""
        super().save_checkpoint(checkpoint, filepath, *args, **kwargs)
        if self._own and "optimizer_states" in checkpoint:
            with self._own_model():
                self.checkpoint_io.save_checkpoint(self._own.save(), _beside(filepath, rank()))
        else:
            self.checkpoint_io.remove_checkpoint(_beside(filepath, rank()))  # of an earlier one

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove what `save_checkpoint` wrote."""
        super().remove_checkpoint(filepath)
        self.checkpoint_io.remove_checkpoint(_beside(filepath, rank()))

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The checkpoint; the rank's own state is read when training starts."""
        self._resumed_from = checkpoint_path
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return loaded

    def _read(self, number: int) -> dict[str, Any] | None:
        """What a rank saved beside the checkpoint, if it did."""
        try:
            saved: dict[str, Any] = self.checkpoint_io.load_checkpoint(
                _beside(self._resumed_from, number)
            )
        except FileNotFoundError:
            return None
        return saved

    def _leave(self) -> None:
        self.on_validation_end()
        if self._own:
            self._own.averager.detach()
        self._own = None

    @contextmanager
    def _own_model(self) -> Iterator[None]:
        """The rank's own model, also while the averaged one is shown."""
        shown = self._view is not None
        self.on_validation_end()
        yield
        if shown:
            self.on_validation_start()


def _beside(checkpoint: Any, number: int) -> str:
    """Where a rank's state is; a link, like Lightning's last.ckpt may be one, is followed."""
    path = os.fspath(checkpoint)
    if os.path.islink(path):
        path = os.path.realpath(path)
    return f"{path}.rank{number}"
