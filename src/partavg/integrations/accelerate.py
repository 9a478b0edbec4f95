"""Partial averaging for loops with accelerate, in the shape of its LocalSGD."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from partavg.backends.distributed import Averager, attach
from partavg.integrations.options import checked, missing
from partavg.integrations.own_state import OwnState, read_from, write

try:
    from accelerate import Accelerator, DistributedType
except ModuleNotFoundError as error:  # pragma: no cover
    raise missing("accelerate", "accelerate", "huggingface") from error


class PartialAveraging:
    """Lets ranks train apart, and averages a part of the model over them after every step.

    It takes the place of accelerate's LocalSGD: `with PartialAveraging(accelerator, model,
    interval=8, optimizer=optimizer) as averaging`. Steps are the optimizer's, so accumulated
    batches are one. Inside, `averaging.averaged()` shows the averaged model, and
    `averaging.save_state` and `load_state` take the place of the accelerator's: what is saved is
    the averaged model, with each rank's own state beside it. Afterwards all ranks hold it.

    `options` are those of `partavg.attach`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        interval: int,
        enabled: bool = True,
        *,
        optimizer: Optimizer | Sequence[Optimizer],
        **options: Any,
    ) -> None:
        _check(accelerator)
        self._options = checked({"interval": interval, **options})
        self._accelerator, self._model = accelerator, model
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self.enabled = enabled and accelerator.use_distributed
        self.averager: Averager | None = None
        """Once training has begun, and if it is enabled."""
        self._own: OwnState | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.enabled:
            model, scaler = self._accelerator.unwrap_model(self._model), self._accelerator.scaler
            model = getattr(model, "_orig_mod", model)  # of one that is compiled
            options = {"scaler": scaler, **self._options} if scaler else self._options
            self._stack.enter_context(self._accelerator.no_sync(self._model))
            for module in self._model.modules():
                if isinstance(module, DistributedDataParallel):
                    module.require_forward_param_sync = False  # rank 0's buffers would go to all
            self.averager = self._stack.enter_context(attach(model, self._optimizers, **options))
            self._own = OwnState(model, self._optimizers, self.averager, scaler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own = None
        self._stack.__exit__(kind, error, trace)

    def step(self) -> None:
        """Nothing, for loops written for LocalSGD: the optimizer's steps are seen as they are."""

    def averaged(self) -> AbstractContextManager[Any]:
        """The averaged model in the place of the rank's own, to evaluate it or to save it."""
        return self._own.averager.averaged() if self._own else nullcontext()

    def save_state(self, output_dir: str | None = None, **kwargs: Any) -> str:
        """`Accelerator.save_state` with the averaged model, and each rank's own state beside it."""
        with self.averaged():
            folder = str(self._accelerator.save_state(output_dir, **kwargs))
        if self._own:
            write(self._own, folder)
        self._accelerator.wait_for_everyone()  # who may load it at once
        return folder

    def load_state(self, input_dir: str | None = None, **kwargs: Any) -> None:
        """`Accelerator.load_state`, and then each rank's own state."""
        found: list[str] = []
        hook = self._accelerator.register_load_state_pre_hook(
            lambda _, folder: found.append(folder)
        )
        try:
            self._accelerator.load_state(input_dir, **kwargs)
        finally:
            hook.remove()
        if self._own:
            self._own.load(read_from(found[0]))


def _check(accelerator: Accelerator) -> None:
    """Raise a ValueError for an accelerator whose ranks cannot train apart."""
    kind = accelerator.distributed_type
    if kind in (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM):
        raise ValueError(
            f"{kind.value} shards one model over all ranks of this accelerator, and "
            f"PartialAveraging averages whole ones: leave it out, or use partavg.attach with a "
            f"mesh in a loop of your own"
        )
