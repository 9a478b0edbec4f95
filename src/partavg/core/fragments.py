"""Which fragment of a model each tensor is in, by its name.

Douillard et al., Streaming DiLoCo with Overlapping Communication: Towards a Distributed Free Lunch,
2025: fragments are blocks of layers, in sequence or strided.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from partavg.registry import suggestion
from partavg.sentences import shown

Patterns = Sequence[Sequence[str]]
"""For each fragment the patterns of the names of its tensors or modules."""


def named(names: Sequence[str], patterns: Patterns) -> list[int]:
    """The fragment of each tensor, where `patterns` name those of each fragment.

    Patterns are those of a shell, of tensors or of modules. A tensor that none of them names goes
    with the one before it; those in front of all go with the first that is named.

    >>> named(["embed", "layers.0.w", "layers.1.w", "head"], [["layers.1"], ["layers.0"]])
    [1, 1, 0, 0]
    """
    _check(patterns)
    found: list[int | None] = [None] * len(names)
    for fragment, some in enumerate(patterns):
        for pattern in some:
            places = [place for place, name in enumerate(names) if _within(name, pattern)]
            if not places:
                modules = dict.fromkeys(name.rpartition(".")[0] or name for name in names)
                raise ValueError(
                    f"fragment {fragment} has {pattern!r}, which matches no parameter that is "
                    f"averaged: {suggestion(pattern, [*modules, *names])}"
                )
            for place in places:
                if found[place] not in (None, fragment):
                    raise ValueError(
                        f"parameter {names[place]!r} is in fragments {found[place]} and "
                        f"{fragment}: let patterns name it in one of them"
                    )
                found[place] = fragment
    return _with_neighbors(found)


def blocks_of(names: Sequence[str]) -> list[int]:
    """The repeated block that each tensor is in, counted through the model: `layers.0`, `layers.1`.

    Blocks are told by the outermost numbers in names that have others beside them; where there are
    none, modules are. Tensors outside go with the one before them, or with the first block.

    >>> blocks_of(["embed.w", "layers.0.mlp.0.w", "layers.0.mlp.1.w", "layers.1.w", "norm.w"])
    [0, 0, 0, 1, 1]
    >>> blocks_of(["fc1.weight", "fc1.bias", "fc2.weight"])
    [0, 0, 1]
    """
    beside: dict[tuple[str, ...], set[str]] = {}
    paths = [tuple(name.split(".")) for name in names]
    for path in paths:
        for depth, word in enumerate(path):
            if word.isdigit():
                beside.setdefault(path[:depth], set()).add(word)
    blocks: dict[tuple[str, ...], int] = {}
    found: list[int | None] = []
    for path in paths:
        ends = (depth for depth in range(len(path)) if path[depth].isdigit())
        end = next((depth for depth in ends if len(beside[path[:depth]]) > 1), None)
        if end is None:
            found.append(None)
        else:
            found.append(blocks.setdefault(path[: end + 1], len(blocks)))
    if not blocks:
        modules: dict[tuple[str, ...], int] = {}
        found = [modules.setdefault(path[:-1], len(modules)) for path in paths]
    return _with_neighbors(found)


def _with_neighbors(found: Sequence[int | None]) -> list[int]:
    """Whatever is nowhere goes with the one before it, or with the first that is somewhere."""
    last = next((place for place in found if place is not None), 0)
    filled = []
    for place in found:
        last = last if place is None else place
        filled.append(last)
    return filled


def _within(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _check(patterns: Any) -> None:
    listed = isinstance(patterns, list | tuple) and len(patterns) > 0
    for some in patterns if listed else ():
        several = isinstance(some, list | tuple) and len(some) > 0
        listed = listed and several and all(isinstance(pattern, str) for pattern in some)
    if not listed:
        raise ValueError(
            f"partition {shown(patterns)} is none: give a partavg.Partition, the name of a "
            f"function that makes one, like channel, or for each part a list of patterns of names, "
            f"like [['layers.0.*'], ['layers.1.*']]"
        )
