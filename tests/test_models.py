import pytest
import torch

from partavg.models import MODELS, cnn, mlp, resnet20


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts() -> None:
    assert count(resnet20((3, 32, 32), 10)) == 272_762
    assert count(resnet20((3, 32, 32), 10, projection=False)) == 269_722
    assert count(cnn((1, 28, 28), 62)) == 6_603_710
    assert count(mlp((64,), 10)) == 64 * 64 + 64 + 64 * 10 + 10
    assert count(mlp((1, 28, 28), 10, hidden=())) == 7850


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_maps_samples_to_classes(name: str) -> None:
    shape = (1, 28, 28)
    assert MODELS[name](shape, 7)(torch.randn(2, *shape)).shape == (2, 7)


def test_the_shortcut_without_parameters_subsamples_and_pads() -> None:
    block = resnet20((3, 8, 8), 10, projection=False)[6]
    x = torch.randn(2, 16, 8, 8)
    y = block.shortcut(x)
    assert y.shape == (2, 32, 4, 4)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()
