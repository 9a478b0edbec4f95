"""Models by name, each built from the shape of one sample, the number of classes and options."""

from collections.abc import Callable

from torch import nn

from partavg.models.cnn import cnn
from partavg.models.dropout_cnn import dropout_cnn
from partavg.models.gpt import gpt
from partavg.models.lstm import lstm
from partavg.models.mlp import logistic, mlp
from partavg.models.resnet import resnet20
from partavg.models.vgg import vgg11
from partavg.models.wide_resnet import wrn16_8, wrn28_10
from partavg.registry import Names

__all__ = [
    "MODELS",
    "cnn",
    "dropout_cnn",
    "gpt",
    "logistic",
    "lstm",
    "mlp",
    "resnet20",
    "vgg11",
    "wrn16_8",
    "wrn28_10",
]

MODELS: Names[Callable[..., nn.Module]] = Names(
    "model",
    {
        "cnn": cnn,
        "dropout_cnn": dropout_cnn,
        "gpt": gpt,
        "logistic": logistic,
        "lstm": lstm,
        "mlp": mlp,
        "resnet20": resnet20,
        "vgg11": vgg11,
        "wrn16_8": wrn16_8,
        "wrn28_10": wrn28_10,
    },
)
