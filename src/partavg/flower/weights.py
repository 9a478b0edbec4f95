"""How much each of the clients counts that answered."""

from collections.abc import Mapping, Sequence

import torch

from partavg.backends.client_weights import capped


def weights_of(
    samples: Mapping[int, int], given: str | Sequence[float], max_weight: float
) -> tuple[dict[int, float], list[int]]:
    """p_i of those who answered, and who says to have so much that it counts less than it says.

    By samples, no client counts more than `max_weight` times the median: numbers are only told.
    """
    counts = dict.fromkeys(samples, 1.0)
    less: list[int] = []
    if given == "samples":
        told = torch.tensor(list(samples.values()), dtype=torch.float64)
        counts = dict(zip(samples, capped(told, max_weight or None).tolist(), strict=True))
        less = [client for client, count in counts.items() if count < samples[client]]
    elif not isinstance(given, str):
        counts = {client: given[client] for client in samples}
    return {client: count / sum(counts.values()) for client, count in counts.items()}, less
