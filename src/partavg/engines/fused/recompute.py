"""Where a transformer can be cut, so that activations in a piece are computed twice, not kept."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import fx

from partavg.engines.fused.token_fusion import added_norm


class Piece(NamedTuple):
    """Steps that run together; what they need of those before, and what is needed later."""

    nodes: Sequence[fx.Node]
    needs: Sequence[fx.Node]
    gives: Sequence[fx.Node]


def cut(nodes: Sequence[fx.Node], results: Collection[fx.Node]) -> list[Piece]:
    """Steps up to results in pieces that begin with a norm of tokens.

    Two tokens cross there: what goes on beside a block, and what the block adds to it.
    """
    place = {node: at for at, node in enumerate(nodes)}
    starts = [0, *(at for node, at in place.items() if at and node.target is added_norm)]
    found = []
    for start, stop in zip(starts, [*starts[1:], len(nodes)], strict=True):
        some = nodes[start:stop]
        used = dict.fromkeys(source for node in some for source in node.all_input_nodes)
        needs = [source for source in used if place[source] < start]
        later = [n for n in some if any(place.get(user, 0) >= stop for user in n.users)]
        gives = dict.fromkeys([*later, *(node for node in some if node in results)])
        found.append(Piece(some, needs, list(gives)))
    return found
