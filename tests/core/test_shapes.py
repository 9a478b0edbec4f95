"""The tests' own check of shapes, which looks once at arguments that look alike."""

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from tests import shapes
from torch import Tensor


@jaxtyping.jaxtyped(typechecker=beartype)
def joined(rows: Float[Tensor, "m d"], more: list[Float[Tensor, "m _"]]) -> Float[Tensor, "m _"]:
    return torch.cat([rows, *more], 1).squeeze(0)


@pytest.mark.skipif(jaxtyping.config.jaxtyping_disable, reason="shapes are not checked")
def test_what_was_right_says_nothing_of_other_shapes() -> None:
    rows = torch.ones(2, 3)
    for _ in range(2):
        assert joined(rows, [rows]).shape == (2, 6)
        for wrong in ([torch.ones(3, 3)], [torch.ones(2)], [rows.int()], rows):
            with pytest.raises(jaxtyping.TypeCheckError, match="checking the parameters"):
                joined(rows, wrong)
        with pytest.raises(jaxtyping.TypeCheckError, match="checking the return value"):
            joined(rows[:1], [rows[:1]])


def test_arguments_that_look_alike_are_checked_once() -> None:
    checked = []

    def jaxtyped(function: Any, **options: Any) -> Any:
        return lambda *args, **kwargs: checked.append((args, kwargs))

    call = shapes._once(jaxtyped)(lambda *args, **kwargs: None)
    two, three = torch.ones(2), torch.ones(3)
    shaped = two, three, two.int(), [two], [two, two], [three], {"a": two}, {"b": two}
    others = "a", "b", 1, 2.0, None  # what the answer looks like depends on something else
    for _ in range(2):
        for value in (*shaped, *others):
            call(value)
            call(value=value)
        call(torch.zeros(2), 5)
        call(torch.ones(2), 6)
    assert len(checked) == 2 * len(shaped) + 1 + 2 * 2 * len(others)


def test_where_annotations_have_no_shape_every_call_is_checked() -> None:
    answers: list[Any] = [1, "1"]

    def answer(number: int) -> int:
        return answers[number]

    call = shapes._once(jaxtyping.jaxtyped, answer, typechecker=beartype)
    assert call(0) == 1
    for wrong in (1, "0"):
        with pytest.raises(BeartypeCallHintViolation):
            call(wrong)


def test_shapes_are_found_wherever_they_are() -> None:
    rows = Float[Tensor, "m d"]
    for hint in (rows, list[rows], rows | None, Callable[[rows], int], "Rows"):
        assert shapes.shaped(int, hint)
    assert not shapes.shaped(int, None, list[Tensor], Callable[[int], Tensor], Callable[..., int])
