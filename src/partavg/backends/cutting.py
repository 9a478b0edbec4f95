"""How a model is cut: the partition that a user names, writes down or gives."""

from typing import cast

from partavg.core.cuts import PARTITIONS, by_name, fresh
from partavg.core.fragments import Patterns
from partavg.core.layout import Layout
from partavg.core.local_columns import Sharing
from partavg.core.partition import Partition, Span
from partavg.registry import mismatch
from partavg.sentences import shown

Cut = str | Partition | Patterns
"""How a model is cut: by the name of a maker, in parts of one's own, or by names of tensors."""


def draws_columns(partition: Cut) -> bool:
    """Whether a partition is that which draws other columns for every averaging."""
    return isinstance(partition, str) and PARTITIONS.find(partition) is fresh


def cut_of(params: Sharing, given: Cut, parts: int, seed: int) -> Partition:
    """The partition of what is shared, as a name, parts of one's own or patterns say it."""
    if isinstance(given, str):
        cut = partition_of(params.shared, given if parts > 1 else "whole", parts, seed)
        check_covers(cut, params.shared)
        return cut
    if isinstance(given, list | tuple):
        return by_name(params.shared, given)
    return of_shared(cast(Partition, given), params)


def partition_of(params: Layout, name: str, parts: int, seed: int) -> Partition:
    """The partition of a model that a name stands for."""
    make = PARTITIONS.find(name)
    if problem := mismatch(make, params, parts, seed):
        raise ValueError(
            f"partition {name!r} cannot be called with a layout, the number of parts and a seed: "
            f"{problem}"
        )
    cut: object = make(params, parts, seed)
    if not isinstance(cut, Partition):
        raise ValueError(
            f"partition {name!r} gave {type(cut).__name__}, and not a Partition: mend the function"
        )
    return cut


def check_covers(cut: Partition, params: Layout, local: tuple[Span, ...] = ()) -> None:
    """Raise a ValueError if a partition is of another model, or leaves out what is not local."""
    if not isinstance(cut, Partition):
        raise ValueError(
            f"partition {shown(cut)} is none: give a partavg.Partition, the name of a function "
            f"that makes one, like channel, or lists of patterns of names"
        )
    if cut.size != params.size:
        raise ValueError(
            f"the partition has {cut.size} columns and the model {params.size}: cut the model "
            f"that is trained, for example by partavg.by_channel"
        )
    if cut.local not in ((), local):
        start, stop = next((span for span in cut.local if span not in local), cut.local[0])
        raise ValueError(
            f"the partition leaves out columns {start} to {stop}: name their parameters as local, "
            f"or put them into a part"
        )


def of_shared(cut: Partition, params: Sharing) -> Partition:
    """What a user's own partition makes of the shared columns: local ones belong to no part."""
    check_covers(cut, params.layout, params.local_spans)
    parts = tuple(map(params.among_shared, cut.parts))
    if params.local and not all(parts):
        raise ValueError(
            f"part {parts.index(())} of the partition has nothing but local columns: cut the model "
            f"so that each part has something to average"
        )
    return Partition(params.shared.size, parts)
