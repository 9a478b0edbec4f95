"""A rank that is lost: the others find out which one, and say so in one sentence.

A failed collective says only that some connection broke. What every rank can still reach is the
store the process group began with, so there they ask each other who is left, and there a rank that
leaves says why.
"""

import json
import os
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import PrefixStore, Store

from partavg.sentences import reason
from partavg.torch_internals import store_of

_GLANCE = 0.5  # seconds between two looks at the store for a rank in trouble
_WAITING, _WORKING = "waiting", "working"


class RankLost(RuntimeError):
    """A collective failed because ranks are gone, or did not come in time."""

    def __init__(self, sentence: str, ranks: tuple[int, ...], *, speaks: bool) -> None:
        super().__init__(sentence)
        self.ranks = ranks
        self.speaks = speaks
        """Whether this is the rank, among those left, that should tell the user."""


class Absent(NamedTuple):
    """The ranks that are not where the others wait for them."""

    left: Sequence[int] = ()
    """They said so."""
    gone: Sequence[int] = ()
    """Their processes have ended."""
    silent: Sequence[int] = ()
    """They do not answer, and nobody knows why."""
    late: Sequence[int] = ()
    """They answer, from somewhere else."""
    hearsay: RankLost | None = None
    """Somebody who lost another rank, of a group that this one is not in, left because of it."""


class RollCall:
    """The ranks of a process group, who they are, and which of them is lost.

    Building it waits for all ranks. `facts` of every rank can be compared then. A thread answers
    for a rank that cannot: it may be waiting for somebody who waits for the one that is lost.
    Ranks are `called` by their numbers among all, where the group is one of some of them.

    >>> store = distributed.HashStore()
    >>> with RollCall(store, 0, 1) as roll, roll.naming_lost("at step 1"):
    ...     pass  # a collective
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        facts: Mapping[str, str] | None = None,
        called: Sequence[int] | None = None,
        patience: float = 5.0,
    ) -> None:
        self._store, self._rank, self._patience = store, rank, patience
        self._called = called or range(size)
        own = {"host": socket.gethostname(), "pid": str(os.getpid()), **(facts or {})}
        store.set(f"member/{rank}", json.dumps(own))
        members = store.multi_get([f"member/{other}" for other in range(size)])
        self.facts: list[dict[str, str]] = [json.loads(member) for member in members]
        """What each rank told of itself; always `host` and `pid`."""
        self.wake: Callable[[], None] | None = None
        """Ends this rank's waiting when another leaves; None where connections that break do so."""
        self._woken = False
        self._state = _WORKING
        self._closed = threading.Event()
        # Not a daemon: those must not be inside the store when the interpreter ends.
        self._thread = threading.Thread(target=self._answer_when_asked, name="partavg roll call")
        self._thread.start()

    @classmethod
    def of(
        cls, group: ProcessGroup | None = None, name: str = "", patience: float = 5.0
    ) -> "RollCall":
        """The roll call of a process group of torch.distributed; all its ranks must take part.

        One after another need different names: the store remembers those who left before. Without
        one they are told apart by torchrun's restarts, which machines count each by itself.
        """
        of = (group or distributed.group.WORLD).group_name  # type: ignore[union-attr]
        known = name or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"partavg/roll/{of}/{known}", store_of(group))
        rank, size = distributed.get_rank(group), distributed.get_world_size(group)
        called = distributed.get_process_group_ranks(group)
        return cls(store, rank, size, called=called, patience=patience)

    @contextmanager
    def naming_lost(self, when: str) -> Iterator[None]:
        """Wait for a collective in here: if it fails, raise a RankLost that names who is missing.

        `when` ends the sentence, for example "at step 17". Other errors stay what they are.
        """
        self._state, since = _WAITING, monotonic()
        try:
            yield
        except RuntimeError as error:
            if not broke_a_connection(error):
                raise  # also a RankLost of another roll call, unless that found nobody
            # What they hold would keep connections open, on which others wait.
            traceback.clear_frames(error.__traceback__)
            raise self._found(when, error, since) from error
        if self._woken:  # what was waited for has not come
            raise self._found(when, RuntimeError("a rank left"), since)
        self._state = _WORKING

    def note(self, reason: str, when: str = "") -> None:
        """Say why this rank is about to leave, and when, for those who will miss it."""
        with suppress(RuntimeError):  # the store is gone
            self._store.set(f"note/{self._rank}", json.dumps([when, reason]))

    def leave(self) -> None:
        """Wake those who wait for this rank, where only they can do that: see `wake`."""
        with suppress(RuntimeError):
            self._store.set("left", str(self._rank))

    def reason_of(self, rank: int) -> str:
        """Why a rank leaves, once it has said so."""
        with suppress(RuntimeError):
            self._store.wait([f"note/{rank}"], timedelta(seconds=self._patience))
        return (self.noted(rank) or ("", "it stopped"))[1]

    def close(self) -> None:
        """Answer no more."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> "RollCall":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def name(self, rank: int) -> str:
        """A rank as a person would look for it."""
        return (
            f"rank {self._called[rank]} ({self.facts[rank]['host']}, pid {self.facts[rank]['pid']})"
        )

    def _found(self, when: str, error: RuntimeError, since: float) -> RankLost:
        """Ask who is left."""
        try:
            self._store.set("trouble", str(self._rank))
            self._answer()
            absent = self._absent()
        except RuntimeError:  # where no agent hosts the store it went with the rank that did
            gone = [rank for rank in range(len(self.facts)) if self._gone(rank)]
            absent = Absent(gone=gone or [0])
        if absent.hearsay:
            return absent.hearsay
        missing = tuple(absent.left or absent.gone or absent.silent or absent.late)
        names = " and ".join(map(self.name, missing))
        was = "was" if len(missing) == 1 else "were"
        if absent.left:
            sentence = " and ".join(self._farewell(rank, when) for rank in missing)
        elif absent.gone:
            sentence = f"{names} {was} lost {when}"
        elif absent.silent:
            known = all(map(self._is_here, missing))
            fate = "running still" if known else "whether it died is not known here"
            sentence = f"{names} {was} silent for {monotonic() - since:.0f} s {when}: {fate}"
        elif absent.late:
            sentence = f"{names} did not answer in time {when}"
        else:
            cause = error.__cause__ or error
            sentence = f"a connection between ranks broke {when}: {reason(cause)}"
        here = min(set(range(len(self.facts))) - set(missing), default=self._rank)
        numbers = tuple(self._called[rank] for rank in missing)
        return RankLost(sentence, numbers, speaks=self._rank == here)

    def _absent(self) -> "Absent":
        """Who is not where the others wait; whoever said why it left needs no more asking."""
        until = monotonic() + self._patience
        everybody = range(len(self.facts))
        while True:
            if left := [rank for rank in everybody if self.noted(rank)]:
                return Absent(left=left)
            states = {rank: self._answered(rank) for rank in everybody}
            silent = [rank for rank, state in states.items() if not state]
            gone = [rank for rank in silent if self._gone(rank)]
            if not gone and (heard := self._heard()):
                return Absent(hearsay=heard)
            if gone or set(states.values()) == {_WAITING} or monotonic() > until:
                break
            sleep(0.1)
        late = [rank for rank, state in states.items() if state == _WORKING]
        return Absent(gone=gone, silent=silent, late=late)

    def noted(self, rank: int) -> tuple[str, str] | None:
        """When and why a rank left, if it said so."""
        with suppress(RuntimeError):
            if self._store.check([key := f"note/{rank}"]):
                when, why = json.loads(self._store.get(key))
                return when, why
        return None

    def pass_on(self, lost: RankLost) -> None:
        """Tell those who lose this rank next whom this rank has lost."""
        with suppress(RuntimeError):
            self._store.set("heard", json.dumps([str(lost), lost.ranks]))

    def _heard(self) -> RankLost | None:
        if not self._store.check(["heard"]):
            return None
        sentence, ranks = json.loads(self._store.get("heard"))
        return RankLost(sentence, tuple(ranks), speaks=False)

    def _farewell(self, rank: int, when: str) -> str:
        """That a rank left, as it said itself."""
        said, why = self.noted(rank) or ("", "")
        return f"{self.name(rank)} left {said or when}" + (f": {why}" if why else "")

    def _answered(self, rank: int) -> str:
        key = f"answer/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _gone(self, rank: int) -> bool:
        """Whether a process of this machine has ended; of another machine nothing is known."""
        return self._is_here(rank) and not _lives(int(self.facts[rank]["pid"]))

    def _is_here(self, rank: int) -> bool:
        """Whether a rank's process is one of this machine."""
        return self.facts[rank]["host"] == self.facts[self._rank]["host"]

    def _answer_when_asked(self) -> None:
        main = threading.main_thread()
        try:
            while main.is_alive() and not self._closed.wait(_GLANCE):
                if self._store.check(["trouble"]):
                    self._answer()
                self._wake_up()
        except RuntimeError:  # the store is gone: nobody can ask
            return

    def _wake_up(self) -> None:
        if (
            self.wake
            and not self._woken
            and self._state == _WAITING
            and self._store.check(["left"])
        ):
            self._woken = True
            self.wake()

    def _answer(self) -> None:
        """Say that this rank lives, and whether it waits."""
        self._store.set(f"answer/{self._rank}", self._state)


_BROKEN = re.compile(r"gloo|connection|timed? ?out|socket|broken pipe|by peer", re.IGNORECASE)


def broke_a_connection(error: RuntimeError) -> bool:
    """Whether torch says so; gloo has no kind of error for it.

    >>> broke_a_connection(RuntimeError("Connection closed by peer")), broke_a_connection(
    ...     RuntimeError("The size of tensor a (768) must match the size of tensor b (512)")
    ... )
    (True, False)
    """
    if isinstance(error, RankLost):
        return not error.ranks
    if isinstance(error, distributed.DistError):
        return True
    return type(error) is RuntimeError and bool(_BROKEN.search(reason(error)))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state not in ("Z", "X")  # ended, but not yet taken note of by its parent
