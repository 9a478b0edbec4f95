"""Ranks that compare notes before they begin: who differs is named, and all stop alike."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import TypeVar

import torch.distributed as dist

from partavg.backends.processes import check_same

Facts = Mapping[str, object]

T = TypeVar("T")


def agree(
    groups: Sequence[dist.ProcessGroup], facts: Facts, error: ValueError | None = None
) -> list[str]:
    """Raise a ValueError on all ranks where one of them has another fact, or an error.

    A rank that cannot go on calls this too, so that the others do not wait for it. Several groups
    are those of a mesh: trouble that one of them finds is told to the next. What comes back is a
    word for each group that its ranks have in common, and no others.
    """
    words = []
    for group in groups:
        try:
            words.append(_compare(group, facts, error))
        except ValueError as problem:
            error = problem
    if error:
        raise error
    return words


def told_by_all(own: T, group: dist.ProcessGroup | None) -> list[T]:
    """What each rank of a group says; without others, what this one does."""
    if group is None:
        return [own]
    said = [own] * group.size()
    dist.all_gather_object(said, own, group=group)
    return said


def _compare(group: dist.ProcessGroup, facts: Facts, error: ValueError | None) -> str:
    ranks = dist.get_process_group_ranks(group)
    own = {name: str(value) for name, value in facts.items()}
    said = told_by_all((own, str(error or ""), token_hex(8)), group)
    for rank, (_, problem, _) in zip(ranks, said, strict=True):
        if problem:
            named = (
                problem if problem.startswith("rank ") else f"rank {rank} cannot start: {problem}"
            )
            raise ValueError(named)
    for name in facts:
        check_same(name, [found[name] for found, _, _ in said], ranks)
    return said[0][2]
