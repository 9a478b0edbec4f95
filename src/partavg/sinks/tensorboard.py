"""Metrics for TensorBoard, while a run goes on."""

from importlib.util import find_spec
from typing import Any

from partavg.metrics.metric import Row
from partavg.sinks.sink import RunInfo

FOLDER = "tensorboard"
"""Where its files are in a run folder."""

_FLUSH = 5  # seconds after which what was written can be seen


class TensorBoard:
    """Writes every number of a row but its step as a scalar; lists are left out."""

    def __init__(self) -> None:
        if find_spec("tensorboard") is None:
            raise ValueError(
                "metrics.tensorboard = true needs TensorBoard, which is not installed: "
                "pip install 'partavg[tensorboard]'"
            )
        self._writer: Any = None

    def begin(self, about: RunInfo) -> None:
        """Begin a file; what was written after the checkpoint to go on from is not shown twice."""
        from torch.utils.tensorboard import SummaryWriter

        if about.folder is None:
            raise ValueError("TensorBoard's files need a run folder: use `partavg run`")
        purge = about.step + 1 if about.step else None
        self._writer = SummaryWriter(
            str(about.folder / FOLDER), purge_step=purge, flush_secs=_FLUSH
        )

    def take(self, row: Row) -> None:
        """Write the numbers of a row."""
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._writer.add_scalar(key, value, row["step"])

    def end(self, summary: Row | None) -> None:
        """Close the file."""
        self._writer.close()
