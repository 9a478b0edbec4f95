"""Where a client keeps its row between messages: a folder on the node, or Flower's context."""

import io
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context

from partavg import checkpoint
from partavg.backends.flower.client import Memory

STATE_DIR = "state-dir"
_KEY = "partavg"


class FolderMemory:
    """A folder on the node: survives the death of any process at any moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for other processes of this node to finish; the system frees what dies."""
        import fcntl  # not on Windows, where the rest of the package works

        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first."""
        return checkpoint.load(self._folder)

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it, whole or not at all, before returning."""
        checkpoint.save(self._folder, turn, state)


class ContextMemory:
    """Flower's own memory of a node: right in the simulation runtime, where nothing is lost."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def lock(self) -> AbstractContextManager[None]:
        """Flower gives a node one message at a time."""
        return nullcontext()

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first."""
        kept = self._context.state.get(_KEY)
        if not isinstance(kept, ArrayRecord):
            return None
        state: dict[str, Any] = torch.load(io.BytesIO(kept[_KEY].data), weights_only=True)
        return state

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it."""
        file = io.BytesIO()
        torch.save(state, file)
        data = file.getvalue()
        self._context.state[_KEY] = ArrayRecord({_KEY: Array("uint8", (len(data),), _KEY, data)})


def memory_of(context: Context, job: str) -> Memory:
    """The memory of a node; `job` is checked and may name a folder."""
    folder = context.node_config.get(STATE_DIR)
    if folder is not None:
        return FolderMemory(Path(str(folder)).expanduser() / job)
    if "ray" in sys.modules:  # the simulation runtime
        return ContextMemory(context)
    raise ValueError(
        f"this node does not say where to keep its model, and Flower's own memory may lose it: "
        f"start the SuperNode with --node-config '{STATE_DIR}=\"/a/folder/of/this/node\" …'"
    )
