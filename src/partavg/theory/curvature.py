"""How fast a gradient changes at a point: power iteration on the Hessian, in whole and per part."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from partavg.core.inputs import Inputs
from partavg.core.seeds import OTHERS, seeded
from partavg.engines.model import RowModel
from partavg.sentences import reason

Method = Literal["auto", "hessian", "difference"]
"""Exact products with the Hessian, or differences of gradients where there is no second one."""

Product = Callable[[Float[Tensor, "d"]], Float[Tensor, "d"]]
"""v -> H v."""


class Objective:
    """The loss of some samples as a function of one row of parameters, in training mode."""

    def __init__(
        self, model: RowModel, buffers: Float[Tensor, "b"], inputs: Inputs, targets: Inputs
    ) -> None:
        self._model = model
        self._buffers = model.buffers.views(buffers)
        self._samples = inputs, targets
        self._key = torch.zeros((), dtype=torch.long, device=buffers.device)

    def gradient(
        self, params: Float[Tensor, "d"], *, again: bool = False
    ) -> tuple[Float[Tensor, "d"], Float[Tensor, "d"]]:
        """A copy of the point and the gradient in it, to be differentiated `again` if asked."""
        point = params.detach().clone().requires_grad_()
        # Whatever is random is the same every time: one function, not a family of them.
        with seeded(0, params.device, OTHERS):
            views = self._model.params.views(point)
            loss, _ = self._model.loss(views, self._buffers, *self._samples, self._key)
            (gradient,) = torch.autograd.grad(loss, point, create_graph=again)
        return point, gradient


def product(objective: Objective, params: Float[Tensor, "d"], method: str = "auto") -> Product:
    """Multiplication with the Hessian of an objective at a point."""
    if method not in get_args(Method):
        raise ValueError(f"method {method!r} is not known: use {', '.join(get_args(Method))}")
    if method == "difference":
        return _differences(objective, params)
    try:
        exact = _exact(objective, params)
        exact(torch.zeros_like(params))
    except RuntimeError as error:  # some operation has no second derivative
        if method == "hessian":
            raise ValueError(
                f"the loss cannot be differentiated twice: {reason(error)}; use method difference "
                f"or auto"
            ) from None
        return _differences(objective, params)
    return exact


def largest_curvature(
    multiply: Product,
    start: Float[Tensor, "d"],
    *,
    within: Bool[Tensor, "d"] | None = None,
    iterations: int = 12,
) -> float:
    """‖H‖ from below, by power iteration; only of the block of the columns `within`, if given.

    >>> hessian = torch.diag(torch.tensor([1.0, -3.0, 2.0]))
    >>> round(largest_curvature(lambda v: hessian @ v, torch.ones(3), iterations=30), 4)
    3.0
    >>> first = torch.tensor([True, False, False])
    >>> largest_curvature(lambda v: hessian @ v, torch.ones(3), within=first)
    1.0
    """
    mask = torch.ones_like(start) if within is None else within.to(start.dtype)
    vector, largest = start * mask, 0.0
    for _ in range(iterations):
        norm = float(vector.norm())
        if norm == 0:
            break
        vector = multiply(vector / norm) * mask
        largest = max(largest, float(vector.norm()))
    return largest


def _exact(objective: Objective, params: Tensor) -> Product:
    point, gradient = objective.gradient(params, again=True)

    def multiply(vector: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(gradient, point, vector, retain_graph=True)
        return found

    return multiply


def _differences(objective: Objective, params: Tensor) -> Product:
    """(∇F(x + h v) − ∇F(x)) / h, with a step of about ε^⅓ of the point's own length."""
    _, here = objective.gradient(params)
    step = torch.finfo(params.dtype).eps ** (1 / 3) * max(1.0, float(params.norm()))

    def multiply(vector: Tensor) -> Tensor:
        length = float(vector.norm())
        if length == 0:
            return torch.zeros_like(vector)
        _, there = objective.gradient(params + (step / length) * vector)
        quotient: Tensor = (there - here) * (length / step)
        return quotient

    return multiply
