"""The network of `partavg plan`: as it is said to be, or measured by the ranks of torchrun."""

from partavg.cli import output, units
from partavg.cost import Network

_BITS = ((1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit"), (1.0, "bit"))


def described(
    bandwidth: str | None, latency: str | None, workers: int | None, backend: str
) -> tuple[Network, str]:
    """The network that was described, and how."""
    if bandwidth is None or workers is None:
        raise ValueError(
            "the network is not clear: give --bandwidth and --workers, or start the command with "
            "torchrun and --measure"
        )
    trip = "0ms" if latency is None else latency
    network = Network(workers, units.bandwidth(bandwidth), units.duration(trip), backend)
    return network, f"{bandwidth} per second, {trip}, {backend}"


def measured(
    bandwidth: str | None, latency: str | None, workers: int | None, backend: str
) -> tuple[Network, str]:
    """The network between the ranks that torchrun started, and what was found."""
    for name, value in (("bandwidth", bandwidth), ("latency", latency), ("workers", workers)):
        if value is not None:
            raise ValueError(f"--measure finds --{name} out by itself: leave one of them out")
    if not output.launched():
        raise ValueError(
            "--measure needs other ranks: start them with torchrun, as in torchrun --nnodes 2 "
            "--nproc-per-node 1 … -m partavg plan --measure …"
        )
    import torch

    from partavg.cli.job import job
    from partavg.cost.measured import fitted, measure

    with job() as found:
        ranks = found.processes
        if backend == "nccl" and not torch.cuda.is_available():
            raise ValueError("--backend nccl needs a GPU on every rank: measure with gloo")
        place = f"cuda:{ranks.local_rank}" if backend == "nccl" else "cpu"
        network = fitted(measure(backend, torch.device(place)), ranks.size, backend)
    trip = f"{1e3 * network.latency:.3g}ms"
    return network, f"{_speed(network.bandwidth)} per second, {trip}, {backend}, measured"


def _speed(bandwidth: float) -> str:
    bits = 8 * bandwidth
    scale, unit = next((scale, unit) for scale, unit in _BITS if bits >= scale or scale == 1.0)
    return f"{bits / scale:.3g}{unit}"
