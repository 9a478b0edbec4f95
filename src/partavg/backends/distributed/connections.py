"""Connections of an attached model's own: when a rank closes its ends, those who wait wake up."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import torch
import torch.distributed as dist

from partavg.backends.lost import RankLost
from partavg.backends.rank_failure import RollCall
from partavg.sentences import reason
from partavg.torch_internals import group_alike


class Connections:
    """Groups of the same ranks as the user's, and a roll call of each.

    Gloo's collectives end when one of their ranks closes its group: with groups of our own a rank
    can leave the others, and the user may go on using theirs. NCCL's wait on, and its groups take
    memory of the GPU: there the user's are used, and aborted if a rank leaves while others wait.
    """

    def __init__(
        self,
        groups: Sequence[dist.ProcessGroup],
        words: Sequence[str],
        device: torch.device,
        *,
        apart: bool = False,
        everyone: tuple[dist.ProcessGroup, str] | None = None,
    ) -> None:
        """Where groups are those of shards, `everyone` answers one roll call, by a word."""
        self.groups: list[dist.ProcessGroup] = []
        self.rolls: list[RollCall] = []
        self._own: list[dist.ProcessGroup] = []
        self._noted, gloo = False, False
        for group, word in zip(groups, words, strict=True):
            kind = _kind(group, device)
            gloo = kind == "gloo"
            made = group_alike(group, f"partavg/{word}", kind) if apart or gloo else None
            self._own += [] if made is None else [made]
            self.groups.append(made or group)
            if everyone is None:
                self.rolls.append(_called(group, word, None if gloo else self.groups[-1:]))
        if everyone is not None:
            self.rolls.append(_called(*everyone, None if gloo else self.groups))

    @contextmanager
    def naming_lost(self, when: str) -> Iterator[None]:
        """Talk to others in here: one that is lost meanwhile is named."""
        with ExitStack() as stack:
            for roll in self.rolls:
                stack.enter_context(roll.naming_lost(when))
            yield

    def note(self, why: str, when: str) -> None:
        """Tell the others why this rank stops; what was said first stands."""
        for roll in () if self._noted else self.rolls:
            roll.note(why, when)
        self._noted = True

    def leave(self, error: BaseException, when: str) -> None:
        """Tell the others which error makes this rank leave, unless they know of it already."""
        if not isinstance(error, RankLost):
            said, name = reason(error), type(error).__name__
            self.note(name if said == name else f"{name}: {said}", when)
            for roll in self.rolls:
                roll.leave()

    @contextmanager
    def telling_why(self) -> Iterator[None]:
        """Get ready in here: a rank that cannot tells the others, and closes its ends."""
        try:
            yield
        except BaseException as error:
            self.leave(error, "before its first step")
            self.close()
            raise

    def pass_on(self, lost: RankLost) -> None:
        """Tell those who will lose this rank whom this rank has lost."""
        for roll in self.rolls:
            roll.pass_on(lost)

    def close(self) -> None:
        """Close all that was made here."""
        for roll in self.rolls:
            roll.close()
        for group in self._own:
            with suppress(ValueError, AssertionError):  # the user ended all groups already
                dist.destroy_process_group(group)
        self.groups, self.rolls, self._own = [], [], []


def _called(
    group: dist.ProcessGroup, word: str, waking: Sequence[dist.ProcessGroup] | None
) -> RollCall:
    """A roll call that, where nothing else does, wakes who waits in some groups."""
    roll = RollCall.of(group, word)
    if waking is not None:
        roll.wake = partial(_abort, waking)
    return roll


def _abort(groups: Sequence[dist.ProcessGroup]) -> None:
    for group in groups:
        group.abort()


def _kind(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name of what carries a group's messages between such devices."""
    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return dict(pairs).get(device.type, "")
