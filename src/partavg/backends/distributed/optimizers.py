"""The user's optimizers: which they are, what they step, and when all have taken a step."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from partavg.backends.distributed.scaler import check_no_other_scaler, unscale_, watching
from partavg.sentences import shown

Deed = Callable[[Optimizer], None]
Moves = Tensor | int
"""1 for a step that was taken, 0 for one that was skipped."""


def optimizers_of(given: object) -> tuple[Optimizer, ...]:
    """One optimizer or several, without what wraps them; a ValueError for anything else."""
    if given is None:
        return ()
    several = list(given) if isinstance(given, list | tuple) else [given]
    found = tuple(map(_unwrapped, several))
    if not found or len(set(map(id, found))) < len(found):
        raise ValueError(
            "the optimizers are no list of different ones: give each that steps the model once, "
            "or none and call averager.step()"
        )
    return found


def _unwrapped(given: object) -> Optimizer:
    """An optimizer that takes hooks: accelerate's, for one, has it inside."""
    found = given
    while not _takes_hooks(found) and hasattr(found, "optimizer"):
        found = found.optimizer
    if not isinstance(found, Optimizer) or not _takes_hooks(found):
        raise ValueError(
            f"optimizer {shown(given)} is none of torch's, whose steps can be watched: give a "
            f"torch.optim.Optimizer or a list of them, or none and call averager.step()"
        )
    return found


def _takes_hooks(given: object) -> bool:
    try:
        given.register_step_post_hook(lambda *_: None).remove()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return False
    return True


def _innermost(optimizer: object) -> object:
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def check_ownership(optimizers: Iterable[Optimizer], parameters: Iterable[nn.Parameter]) -> None:
    """Raise a ValueError for an optimizer that has none of the model's parameters."""
    known = set(map(id, parameters))
    for optimizer in optimizers:
        if known.isdisjoint(owned(optimizer)):
            raise ValueError(
                f"optimizer {type(optimizer).__name__} has none of the model's trainable "
                f"parameters: give the one that steps this model, made after the model was moved, "
                f"wrapped or loaded"
            )


def owned(optimizer: Optimizer) -> set[int]:
    """The identities of the parameters that an optimizer steps."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def rates(optimizers: Iterable[Optimizer]) -> set[float]:
    """All learning rates there are."""
    return {float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups}


class Steps:
    """Looks on while optimizers step: a step is complete when the last of them has taken its own.

    `before` and `after` are called with each optimizer around its step, and inside of a closure
    `before` with all gradients that it makes. A step that a `scaler` is in charge of is complete
    when the scaler is updated, be it taken or skipped.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        complete: Callable[[Moves], None],
        *,
        before: Deed | None = None,
        after: Deed | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self._optimizers, self._complete, self._scaler = optimizers, complete, scaler
        self._before, self._after = before, after
        self._moves: dict[int, Moves] = {}
        self._scaled = False
        self._first = True
        self._exits = ExitStack()
        for place, optimizer in enumerate(optimizers):
            if before:
                self._exits.callback(optimizer.register_step_pre_hook(self._prepare).remove)
            hook = partial(self._note, place)
            self._exits.callback(optimizer.register_step_post_hook(hook).remove)
        if scaler is not None:
            self._exits.enter_context(watching(scaler, step=self._tried, update=self._updated))

    def __bool__(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._optimizers) or self._scaler is not None

    def close(self) -> None:
        """Let all be as it was."""
        self._exits.close()
        self._optimizers, self._scaler = (), None

    def check_updated(self) -> None:
        """Raise a ValueError for a step whose scaler was not updated."""
        if self._scaler is not None and len(self._optimizers) - 1 in self._moves:
            raise ValueError(
                "the optimizer has stepped, and scaler.update() was not called: call it after "
                "every step, or attach without scaler="
            )

    @torch.no_grad()
    def _prepare(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Correct the gradients of a step: now, or whenever its closure has made them."""
        assert self._before
        correct = self._before
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            unscale_(optimizer)
            correct(optimizer)
            return None

        def corrected() -> Any:
            loss = closure()
            with torch.no_grad():
                correct(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": corrected}
        return (args[0], corrected, *args[2:]), kwargs

    def _note(self, place: int, optimizer: Optimizer, *_: Any) -> None:
        """A step was taken, unless a scaler inside of the optimizer skipped it."""
        skipped = getattr(optimizer, "found_inf", None)
        if self._first and self._scaler is None and skipped is None:
            check_no_other_scaler()
        self._first, last = False, place == len(self._optimizers) - 1
        if last:
            self.check_updated()
        if self._after and (skipped is None or not bool(skipped)):
            self._after(optimizer)
        self._moves[place] = 1 if skipped is None else 1 - skipped.clamp(max=1)
        if last and self._scaler is None:
            self._end()

    def _tried(self, optimizer: object) -> None:
        """A scaler let an optimizer step, or did not."""
        if _innermost(optimizer) is _innermost(self._optimizers[-1]):
            self._scaled = True

    def _updated(self) -> None:
        if self._scaled:
            self._end()

    def _end(self) -> None:
        """All have stepped."""
        moves: Moves = 1
        for place in range(len(self._optimizers)):
            moves = moves * self._moves.get(place, 0)
        self._moves, self._scaled = {}, False
        self._complete(moves)
