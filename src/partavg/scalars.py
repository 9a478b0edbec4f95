"""Metrics for TensorBoard, while a run goes on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_FLUSH = 5  # seconds after which what was written can be seen


def check_scalars(wanted: bool) -> None:
    """Raise a ValueError if TensorBoard is wanted but not installed."""
    if wanted and find_spec("tensorboard") is None:
        raise ValueError(
            "metrics.tensorboard = true needs TensorBoard, which is not installed: "
            "pip install 'partavg[tensorboard]'"
        )


class Scalars(AbstractContextManager["Scalars"]):
    """Writes the numbers of rows of metrics; `step` steps were written before."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a run wrote after the checkpoint that it goes on from is not shown twice.
        self._writer = SummaryWriter(
            str(folder), purge_step=step + 1 if step else None, flush_secs=_FLUSH
        )

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, row: Mapping[str, Any]) -> None:
        """Write every number of a row but its step; lists are left out."""
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._writer.add_scalar(key, value, row["step"])
