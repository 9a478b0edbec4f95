"""Where a client keeps its row between messages: a folder on the node, or Flower's context."""

import io
import logging
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock
from flwr.app import Array, ArrayRecord, Context

from partavg import checkpoint
from partavg.flower.state_folders import FINISHED, LOCK
from partavg.sentences import shown

log = logging.getLogger("flwr")

STATE_DIR = "state-dir"
_KEY = "partavg"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a kept row is."""

    job: str
    token: str
    """Of the job's start: runs of one job do not meet."""
    client: int
    node: str
    """The fingerprint of the node's key, or where the node keeps its rows."""


class Memory(Protocol):
    """Where a client keeps its row between messages."""

    def lock(self) -> AbstractContextManager[Any]:
        """Keep other processes out."""
        ...

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first. A ValueError if it is somebody else's."""
        ...

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it, whole or not at all, before returning."""
        ...


class FolderMemory:
    """A folder on the node: survives the death of any process at any moment."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder, self._owner = folder, owner

    def lock(self) -> AbstractContextManager[Any]:
        """Wait for other processes of this node to finish; the system frees what dies."""
        client, job, home = list(self._folder.parents)[:3]
        for folder in (home, job, client, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        job.chmod(0o700)  # one of an earlier version may be open to all
        return FileLock(self._folder / LOCK, mode=0o600)

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first. A ValueError if it is somebody else's."""
        saved = checkpoint.load(self._folder)
        if saved is None and next(self._folder.parents[1].glob("step-*.pt"), None):
            log.warning(
                "partavg: %s holds a model that an earlier version of partavg kept; it is not "
                "used, and can be removed", self._folder.parents[1],
            )  # fmt: skip
        return _checked(saved, self._whose(), str(self._folder))

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it, whole or not at all, before returning."""
        checkpoint.save(self._folder, turn, {**state, "owner": self._whose()}, private=True)
        if state["last"]:
            (self._folder / FINISHED).touch(0o600)
        else:
            (self._folder / FINISHED).unlink(missing_ok=True)

    def _whose(self) -> dict[str, Any]:
        """A node without a key is known by its folder: a copy is another one."""
        place = f"folder {self._folder.stat().st_ino}"
        return asdict(replace(self._owner, node=self._owner.node or place))


class ContextMemory:
    """Flower's own memory of a node: right in the simulation runtime, where nothing is lost."""

    def __init__(self, context: Context, owner: Owner) -> None:
        self._context = context
        self._whose = asdict(replace(owner, node=owner.node or f"node {context.node_id}"))

    def lock(self) -> AbstractContextManager[None]:
        """Flower gives a node one message at a time."""
        return nullcontext()

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first. A ValueError if it is somebody else's."""
        kept = self._context.state.get(_KEY)
        if not isinstance(kept, ArrayRecord):
            return None
        state: dict[str, Any] = torch.load(io.BytesIO(kept[_KEY].data), weights_only=True)
        return _checked(state, self._whose, "Flower's memory of this node")

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it."""
        file = io.BytesIO()
        torch.save({**state, "owner": self._whose}, file)
        data = file.getvalue()
        self._context.state[_KEY] = ArrayRecord({_KEY: Array("uint8", (len(data),), _KEY, data)})


def memory_of(context: Context, job: str, client: int, node: str = "") -> Callable[[str], Memory]:
    """The memory of a client on a node, for each start of a job, which is known by its token.

    `job` is checked and may name a folder. `node` is the fingerprint of the node's key, if any.
    """
    named = context.node_config.get(STATE_DIR)
    if named is None and "ray" not in sys.modules:
        raise ValueError(
            f"this node does not say where to keep its model, and Flower's own memory may lose "
            f"it: start the SuperNode with --node-config '{STATE_DIR}=\"/a/folder/of/this/node\" …'"
        )

    def memory(token: str) -> Memory:
        if not re.fullmatch(r"[0-9a-f]{16}", token):
            raise ValueError(f"the order's token {shown(token)} names no start of a job")
        owner = Owner(job, token, client, node)
        if named is None:  # the simulation runtime
            return ContextMemory(context, owner)
        home = Path(str(named)).expanduser().absolute() / job / f"client-{client}"
        return FolderMemory(home / token, owner)

    return memory


def _checked(
    saved: dict[str, Any] | None, whose: dict[str, Any], where: str
) -> dict[str, Any] | None:
    """What was kept, if it is this client's."""
    if saved is None:
        return None
    kept = saved.pop("owner", None)
    if not isinstance(kept, dict):
        raise ValueError(
            f"{where} holds what another version of partavg kept: remove it, and the client gets "
            f"the whole model"
        )
    for name, value in whose.items():
        if kept.get(name) != value:
            raise ValueError(
                f"{where} holds the state of {name} {shown(kept.get(name))}, and this is {name} "
                f"{shown(value)}: give each node a {STATE_DIR} of its own, or remove that folder, "
                f"and the client gets the whole model"
            )
    return saved
