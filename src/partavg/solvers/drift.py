"""What solvers share that look at how far workers moved since a part was last averaged."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.solver import State, Step, Sync
from partavg.solvers.sgd import SGD

ANCHOR = "anchor"


def anchored(params: Float[Tensor, "m d"]) -> dict[str, Float[Tensor, "1 d"]]:
    """The start, which all workers have in common."""
    return {ANCHOR: params[:1].clone()}


def mean_gradient(change: Float[Tensor, "m n"], sync: Sync) -> Float[Tensor, "m n"]:
    """The mean gradient that made a change; 0 for a worker that took no step."""
    inverse = torch.where(sync.lr_sum > 0, 1 / sync.lr_sum, 0.0)
    return change * inverse.to(change.dtype)


def check_base(base: object) -> None:
    """Raise a ValueError for a base other than SGD, of which nobody knows how far it moves."""
    if not isinstance(base, SGD):
        raise ValueError(
            f"base {type(base).__name__} does not say how far a gradient moves a worker: use SGD, "
            f"with or without momentum"
        )


def correcting(base: SGD, own: str, center: str | None = None) -> Abilities:
    """What solvers can do and need that correct a base's steps by what clients remember.

    The mean of what they remember is the `center`, or 0.
    """
    check_base(base)
    local = base.momentum_at_averaging == "local"
    beside = base.momentum > 0 and local
    return replace(
        base.abilities,
        plain=False,
        per_client=(own,),
        centers=((own, center),),
        corrects_gradients=not beside,
        corrects_parameters=beside,
        estimates_gradients=True,
        needs_last_average=True,
        allows_delay=local,
        renewed_by_averaging=False,
    )


def corrected_step_(
    base: SGD,
    params: Float[Tensor, "m n"],
    grads: Float[Tensor, "m n"],
    state: State,
    now: Step,
    *,
    less: Float[Tensor, "m n"],
    more: Float[Tensor, "1 n"] | None = None,
) -> None:
    """A step of the base as if gradients were g − less + more.

    Momentum that outlives an averaging holds plain gradients only, and the correction is given the
    weight that momentum would give it: held in there, a correction would still act after it was
    replaced, and be mistaken for a gradient by the next estimate.
    """
    if base.momentum > 0 and base.momentum_at_averaging == "local":
        base.step_(params, grads, state, now)
        weight = (now.lr * base.weight(now.taken)).to(params.dtype)
        # The gradients are used up: their memory is in the cache still.
        params.addcmul_(less if more is None else torch.sub(less, more, out=grads), weight)
    else:
        grads.sub_(less)
        if more is not None:
            grads.add_(more)
        base.step_(params, grads, state, now)
