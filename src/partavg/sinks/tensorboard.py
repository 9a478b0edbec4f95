"""Metrics for TensorBoard, while a run goes on."""

from typing import Any

from partavg.metrics.metric import Row
from partavg.sinks.needs import check_installed
from partavg.sinks.sink import RunInfo, numbers

FOLDER = "tensorboard"
"""Where its files are in a run folder."""

_FLUSH = 5  # seconds after which what was written can be seen


class TensorBoard:
    """Writes every number of a row but its step as a scalar; lists are left out."""

    needs_folder = True

    def __init__(self) -> None:
        check_installed("tensorboard", "TensorBoard")
        self._writer: Any = None

    def begin(self, about: RunInfo) -> None:
        """Begin a file; what was written after the checkpoint to go on from is not shown twice."""
        from torch.utils.tensorboard import SummaryWriter

        assert about.folder
        purge = about.step + 1 if about.step else None
        self._writer = SummaryWriter(
            str(about.folder / FOLDER), purge_step=purge, flush_secs=_FLUSH
        )

    def take(self, row: Row) -> None:
        """Write the numbers of a row."""
        for key, value in numbers(row).items():
            self._writer.add_scalar(key, value, row["step"])

    def end(self, summary: Row | None) -> None:
        """Close the file."""
        self._writer.close()
