"""What is measured: functions of (outputs, targets), and what a run measures of itself.

`accuracy`, `top_k` and the others give the sum and the count of a batch; batches and ranks are
added up, then divided.
"""

from partavg.scores.classes import (
    accuracy,
    binary_accuracy,
    f1,
    perplexity,
    token_accuracy,
    top_k,
)
from partavg.scores.errors import mae, mse
from partavg.scores.score import MetricFailed, Unmeasurable

__all__ = [
    "MetricFailed",
    "Unmeasurable",
    "accuracy",
    "binary_accuracy",
    "f1",
    "mae",
    "mse",
    "perplexity",
    "token_accuracy",
    "top_k",
]
