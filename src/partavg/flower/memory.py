"""Where a client keeps its row between messages: a folder on the node, or Flower's context."""

import io
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock
from flwr.app import Array, ArrayRecord, Context

from partavg import checkpoint

STATE_DIR = "state-dir"
_KEY = "partavg"


class Memory(Protocol):
    """Where a client keeps its row between messages."""

    def lock(self) -> AbstractContextManager[Any]:
        """Keep other processes out."""
        ...

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first."""
        ...

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it, whole or not at all, before returning."""
        ...


class FolderMemory:
    """A folder on the node: survives the death of any process at any moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lock(self) -> AbstractContextManager[Any]:
        """Wait for other processes of this node to finish; the system frees what dies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._folder / "lock")

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
