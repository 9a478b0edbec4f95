"""Connections of an attached model's own: when a rank closes its ends, those who wait wake up."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch
import torch.distributed as dist

from partavg.backends.rank_failure import RankLost, RollCall
from partavg.sentences import reason
from partavg.torch_internals import group_alike


class Connections:
    """Groups of the same ranks as the user's, and a roll call of each.

    Gloo's collectives end when one of their ranks closes its group, so an own group lets a rank
    leave the others without a word to those of the user, who may go on using theirs. NCCL's do not,
    and its groups take memory of the GPU: of those the user's own are used.
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
        self._noted = False
        for group, word in zip(groups, words, strict=True):
            kind = _kind(group, device)
            if apart or kind == "gloo":
                self._own.append(made := group_alike(group, f"partavg/{word}", kind))
                self.groups.append(made)
            else:
                self.groups.append(group)
        called = zip(groups, words, strict=True) if everyone is None else [everyone]
        self.rolls += [RollCall.of(group, word) for group, word in called]

    @contextmanager
    def naming_lost(self, when: str) -> Iterator[None]:
        """Talk to others in here: one that is lost meanwhile is named."""
        with ExitStack() as stack:
            for roll in self.rolls:
                stack.enter_context(roll.naming_lost(when))
            yield

    def note(self, why: str, when: str) -> None:
        """Tell the others why this rank leaves; what was said first stands."""
        for roll in () if self._noted else self.rolls:
            roll.note(why, when)
        self._noted = True

    def close(self) -> None:
        """Close all that was made here."""
        for roll in self.rolls:
            roll.close()
        for group in self._own:
            with suppress(ValueError, AssertionError):  # the user ended all groups already
                dist.destroy_process_group(group)
        self.groups, self.rolls, self._own = [], [], []


def _kind(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name of what carries a group's messages between such devices."""
    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return dict(pairs).get(device.type, "")


def why_it_left(error: BaseException) -> str:
    """What the others are told of an error; nothing of one that they know of already."""
    if isinstance(error, RankLost):
        return ""
    said, name = reason(error), type(error).__name__
    return name if said == name else f"{name}: {said}"
