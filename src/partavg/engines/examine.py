"""A model seen at work on its first batch: what it draws from, and what it keeps for itself."""

import pickle
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partavg.core.inputs import Inputs, call, tensors
from partavg.core.loop import Batch
from partavg.core.seeds import OTHERS, moved, seeded, sources
from partavg.engines.dropout import KeyedDropout, refuse
from partavg.engines.model import RowModel
from partavg.torch_internals import random_calls

Rows = tuple[Tensor, Tensor]
"""Parameters and buffers of some workers."""

ONLY_LOOPED = "by itself, which engine looped alone repeats for each worker and step"


def examine(model: RowModel, rows: Rows, batch: Batch) -> tuple[str, ...]:
    """The generators that a model draws from in its forward pass, besides keyed dropout.

    It is run on the first rows twice, as a plain loop would: what comes out must be the same, and
    nothing that rows do not carry may have changed from one time to the other.
    """
    drawn: set[str] = set()
    once = _run(model, rows, batch, drawn)
    kept = _kept(model)
    again = _run(model, rows, batch, drawn)
    for (kind, name), value in _kept(model).items():
        if not _same(kept.get((kind, name)), value):
            raise ValueError(_SHARED[kind].format(repr(name)))
    if not _same(once, again):
        raise ValueError(
            "the model computes something else when it is given the same batch again: let it draw "
            "from the global generators of torch, numpy or random, which are seeded per worker "
            "and step"
        )
    return tuple(name for name in sources(rows[0].device) if name in drawn)


def check_loss(loss: Any) -> None:
    """Refuse what cannot be minimized."""
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"the loss returned a {type(loss).__name__}: it must return a tensor of one number"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"the loss returned a tensor of shape {list(loss.shape)}: it must be one number; use "
            f'reduction="mean"'
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on the trainable parameters: compute it from the outputs "
            "of the model, without detach, item or no_grad on the way"
        )


def _run(model: RowModel, rows: Rows, batch: Batch, drawn: set[str]) -> Tensor:
    """The losses and buffers of some rows, flat; adds the generators that were drawn from."""
    params, buffers = (tensor.clone() for tensor in rows)
    losses = []
    for row in range(len(params)):
        inputs, targets, key = batch.one(row)
        with model.holding(params[row], buffers[row]) as (module, parameters):
            with seeded(int(key), params.device, OTHERS), KeyedDropout(key) as keyed:
                before = moved(params.device)
                with _noted(f"in the model's forward pass on inputs {_shapes(inputs)}"):
                    outputs = call(module, inputs)
                with _noted(f"in the loss of the model's outputs and targets {_shapes(targets)}"):
                    loss = _not_spread(model.criterion, outputs, targets)
                drawn.update(moved(params.device, before))
            check_loss(loss)
            _check_graph(loss)
            _check_classes(loss, outputs, parameters)
            if keyed.drops or not drawn.isdisjoint(OTHERS):
                _check_backward(loss, parameters, dropout=keyed.drops)
        losses.append(loss.detach().view(1).to(params.dtype))
    return torch.cat([*losses, buffers.flatten()])


def _not_spread(criterion: Any, outputs: Any, targets: Any) -> Any:
    """The loss; torch's warning that it spreads outputs and targets over each other is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Using a target size", UserWarning)
        try:
            return criterion(outputs, targets)
        except UserWarning:
            raise ValueError(
                f"outputs {_shapes(outputs)} and targets {_shapes(targets)} of a batch differ in "
                f"shape, so that the loss would compare each output with every target: "
                f"give as many outputs as targets, squeeze(-1) drops an axis of 1"
            ) from None


def _check_classes(loss: Tensor, outputs: Any, parameters: list[nn.Parameter]) -> None:
    """That a loss of classes has more than one: of one it is always 0, and nothing is learned."""
    single = isinstance(outputs, Tensor) and outputs.ndim > 1 and outputs.shape[1] == 1
    if not single or float(loss.detach()) != 0:
        return
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    if not any(slope is not None and bool(slope.any()) for slope in slopes):
        raise ValueError(
            f"the loss of outputs {_shapes(outputs)} is 0 whatever the parameters are, as "
            f"cross_entropy is of a single class: give an output per class, or another loss, like "
            f"mse for numbers and bce_with_logits for labels of 0 and 1"
        )


def _check_graph(loss: Tensor) -> None:
    """That autograd sees all parameters: checkpointing of the old kind hides them."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("CheckpointFunction"):
            raise ValueError(
                "the model uses activation checkpointing of the old kind, which hides parameters "
                "from torch.autograd.grad: give checkpoint use_reentrant=False"
            )
        waiting += [following for following, _ in node.next_functions]


def _check_backward(loss: Tensor, parameters: list[nn.Parameter], *, dropout: bool) -> None:
    """That nothing is drawn again in the backward pass: torch restores but its own generators."""
    before = moved(loss.device)
    with random_calls() as calls:
        try:
            torch.autograd.grad(loss, parameters, allow_unused=True)
        except RuntimeError:  # checkpointing may notice by itself, in many words
            if not (calls and dropout):
                raise
    if calls and dropout:
        refuse()
    if again := OTHERS.keys() & moved(loss.device, before):
        raise ValueError(
            f"the model draws from {' and '.join(sorted(again))} again in the backward pass: use "
            f"activation checkpointing only around layers that draw from torch alone"
        )


@contextmanager
def _noted(where: str) -> Iterator[None]:
    """Errors of a user's own code stay what they are, and say where they came from."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised {where}, when partavg tried the first batch of a worker")
        raise


def _shapes(inputs: Inputs) -> str:
    return ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in tensors(inputs))


_SHARED = {
    "parameter": "parameter {} is frozen, but every forward pass changes it, so that workers would "
    "share it: register it as a buffer",
    "buffer": "buffer {} is no part of the state dict, but every forward pass changes it, so that "
    "workers would share it: register it with persistent=True",
    "attribute": "attribute {} is changed by every forward pass, so that workers would share it: "
    "register it as a buffer",
    "generator": "attribute {} is a generator of its own, which workers would share: draw from the "
    "global ones of torch, numpy or random, which are seeded per worker and step",
}


def _kept(model: RowModel) -> dict[tuple[str, str], Any]:
    """All that a module keeps and rows do not carry, by kind and name, as far as it is seen."""
    found: dict[tuple[str, str], Any] = {}
    for kind, name, value in model.outside_rows():
        if kind == "parameter":  # may be large: where it is changed, so are these
            numbers = value.detach().double()
            found[kind, name] = torch.stack([numbers.sum(), numbers.norm()])
        elif isinstance(value, Tensor):
            found[kind, name] = value.detach().clone()
        elif isinstance(value, int | float | complex | np.number):
            found[kind, name] = torch.as_tensor(value)
        elif (state := _generator_state(value)) is not None:
            found["generator", name] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    return found


def _generator_state(value: Any) -> bytes | None:
    """The state of a generator that a module has for itself."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return pickle.dumps(value)
    return None


def _same(one: Tensor | None, other: Tensor) -> bool:
    """Whether two tensors are equal, or nearly so: sums may be added up in another order."""
    if one is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    away = torch.where((one == other) | (one.isnan() & other.isnan()), 0, one - other)
    return bool(away.norm() <= torch.finfo(one.dtype).eps ** 0.75 * one[one.isfinite()].norm())
