"""Inputs of one tensor, of several, of several by name."""

import pytest
import torch
from torch import Tensor

from partavg.core import inputs

ONE = torch.arange(3.0)
SHAPES: list[inputs.Inputs] = [ONE, (ONE, ONE + 1), {"a": ONE, "b": ONE + 1}]


@pytest.mark.parametrize("given", SHAPES)
def test_each_keeps_the_structure(given: inputs.Inputs) -> None:
    doubled = inputs.each(lambda tensor: 2 * tensor, given)
    assert type(doubled) is type(given)
    for before, after in zip(inputs.tensors(given), inputs.tensors(doubled), strict=True):
        assert torch.equal(after, 2 * before)


@pytest.mark.parametrize("given", SHAPES)
def test_a_module_is_called_with_its_arguments(given: inputs.Inputs) -> None:
    def weighed(a: Tensor, b: Tensor | None = None) -> Tensor:
        return a if b is None else a + 10 * b

    expected = ONE if isinstance(given, Tensor) else ONE + 10 * (ONE + 1)
    assert torch.equal(inputs.call(weighed, given), expected)


@pytest.mark.parametrize("given", SHAPES)
def test_samples_are_counted_once(given: inputs.Inputs) -> None:
    assert inputs.count(given) == 3
