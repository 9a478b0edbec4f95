"""Which buffers are averaged with which part."""

from partavg.core.layout import Layout, channels_of
from partavg.core.partition import Partition, Span, merged, module_of


def partition_buffers(partition: Partition, params: Layout, buffers: Layout) -> Partition:
    """Cut the buffers so that a channel's statistics go with that channel's parameters.

    A buffer follows a parameter of its own module with as many channels (BatchNorm's weight);
    a buffer without one is cut evenly. Parts without buffers stay empty.
    """
    owners = partition.owners()
    parts = len(partition.parts)
    spans: list[list[Span]] = [[] for _ in range(parts)]
    for name, shape, start, size in zip(
        buffers.names, buffers.shapes, buffers.starts, buffers.sizes, strict=True
    ):
        count = channels_of(shape)
        leader = _leader(params, module_of(name), count)
        if leader:
            followed = owners[leader.start : leader.stop : leader.step].tolist()
        else:
            followed = [channel * parts // count for channel in range(count)]
        width = size // max(1, count)
        for channel, part in enumerate(followed):
            spans[part].append(Span(start + channel * width, start + (channel + 1) * width))
    return Partition(buffers.size, tuple(merged(part) for part in spans))


def _leader(params: Layout, module: str, channels: int) -> range | None:
    """First columns of the channels of the parameter that a buffer of `module` follows."""
    for name, shape, start, size in zip(
        params.names, params.shapes, params.starts, params.sizes, strict=True
    ):
        if size and module_of(name) == module and channels_of(shape) == channels:
            return range(start, start + size, size // channels)
    return None
