"""How much memory there is for samples."""

from pathlib import Path

import torch

_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def check_room(needed: int, what: str) -> None:
    """Raise a ValueError if a copy of so many bytes would not fit into this machine's memory."""
    free = free_bytes()
    if free is not None and needed > free:
        raise ValueError(
            f"{what} need {readable(needed)} and {readable(free)} of memory are free: keep them in "
            f"a file that NumPy maps (numpy.lib.format.open_memmap), or as uint8 with a transform"
        )


def free_bytes() -> int | None:
    """Memory that can be used, of the machine or of this container; None if nobody knows."""
    found = [value for value in (_machine(), _container()) if value is not None]
    return min(found, default=None)


def free_on(device: torch.device) -> int | None:
    """Memory that can be used on a GPU; None for other devices."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def readable(count: int) -> str:
    """So many bytes, for a sentence.

    >>> readable(1_536_000_000)
    '1.54 GB'
    """
    number = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in _MACHINE.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        return None


def _container() -> int | None:
    try:
        limit, used = ((_CONTAINER / f"memory.{name}").read_text() for name in ("max", "current"))
        lines = (_CONTAINER / "memory.stat").read_text().splitlines()
        # What the kernel keeps of files it gives back when asked.
        files = int(dict(line.split() for line in lines)["inactive_file"])
        return max(0, int(limit) - int(used) + files)
    except (OSError, ValueError, LookupError):
        return None
