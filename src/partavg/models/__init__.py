"""Models by name, each built from the shape of one sample, the number of classes and options."""

from collections.abc import Callable

from torch import nn

from partavg.models.cnn import cnn
from partavg.models.mlp import mlp
from partavg.models.resnet import resnet20

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "mlp": mlp, "resnet20": resnet20}
