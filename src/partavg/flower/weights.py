"""How much each of the clients counts that answered."""

from collections.abc import Mapping, Sequence
from statistics import median_low


def weights_of(
    samples: Mapping[int, int], given: str | Sequence[float], max_weight: float
) -> tuple[dict[int, float], list[int]]:
    """p_i of those who answered, and who says to have so much that it counts less than it says.

    By samples, no client counts more than `max_weight` times the median: numbers are only told.
    """
    counts = dict.fromkeys(samples, 1.0)
    capped: list[int] = []
    if given == "samples":
        most = max_weight * median_low(samples.values()) if max_weight and samples else float("inf")
        capped = [client for client, count in samples.items() if count > most]
        counts = {client: min(float(count), most) for client, count in samples.items()}
    elif not isinstance(given, str):
        counts = {client: given[client] for client in samples}
    return {client: count / sum(counts.values()) for client, count in counts.items()}, capped
