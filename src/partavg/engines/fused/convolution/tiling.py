"""How the pixels of small residual networks are divided among the blocks of the CUDA kernels."""

from typing import NamedTuple

from partavg.engines.fused.convolution.case import Case

MOST_SHARED = 227 * 1024
"""Bytes of shared memory that a block can have."""
_CHANNELS = (16, 32, 64)
Constants = tuple[tuple[str, int], ...]


class Tiling(NamedTuple):
    """A convolution and how its pixels are divided: the constants of the kernels."""

    C: int
    """Channels in shared memory."""
    GIVEN: int
    """Channels in memory: those, or 4 of an image."""
    REAL: int
    """Channels that the weights have."""
    K: int
    GH: int
    """Height and width of the outputs; with UP, of the inputs."""
    GW: int
    TAPS: int
    STRIDE: int
    UP: int = 0

    @property
    def images(self) -> int:
        """Of a tile."""
        few = self.STRIDE == 2 or self.UP
        return 1 if self.GW >= 16 else 2 if few else 4

    @property
    def rows(self) -> int:
        """Of a tile."""
        return 16 if self.GW == 16 and self.STRIDE == 1 else 8

    @property
    def strips(self) -> int:
        """Of 16 pixels, in each row of a tile."""
        return self.images * self.GW // 16

    @property
    def tile(self) -> int:
        """Bytes of a tile with its rim."""
        high, wide = ((size - 1) * self.STRIDE + 3 for size in (self.rows, self.GW))
        return self.images * high * wide * (self.C + 8) * 2

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return self.images * self.rows * self.GW

    def tiles(self, count: int) -> int:
        """Of a worker's images."""
        return -(-count // self.images) * (self.GH // self.rows)

    def constants(self, **more: int) -> Constants:
        """For a kernel."""
        own = {**self._asdict(), "IMAGES": self.images, "ROWS": self.rows}
        return tuple({**own, **more}.items())

    def forward(self, *, gated: bool = False) -> dict[str, int]:
        """How the kernel for outputs, or for input gradients, is cut, and its shared memory."""
        sides = self.K // 16 if self.STRIDE == 2 or self.UP else max(1, self.K // 32)
        each = 2 if self.UP else 4
        threads = 32 * sides * self.strips * (self.rows // each)
        held = self.C == 16  # all weights in registers, otherwise in shared memory
        weights = 0 if held else 9 * self.C * self.K * 2
        memory = 2 * self.tile + weights + 12 * max(self.C, self.K)
        blocks = max(1, min(MOST_SHARED // (memory + 1024), 512 // threads))
        if gated:  # registers for what is on its way
            blocks = max(1, min(blocks, (384 if self.K // 8 // sides == 2 else 256) // threads))
        cut = {"WN": sides, "RW": each, "THREADS": threads, "BLOCKS": blocks}
        return {**cut, "HELD": int(held), "EARLY": int(gated), "memory": memory}

    def weight(self) -> dict[str, int]:
        """The same for the kernel for weights."""
        each = 2 if self.STRIDE == 2 else 4
        memory = 2 * (self.tile + self.pixels * (self.K + 8) * 2)
        sides = self.C // 16 * max(1, self.K // 32)
        most = 8 if memory > MOST_SHARED // 2 else 4
        groups = max(1, min(self.strips * (self.rows // each), most // sides))
        threads = 32 * sides * groups
        blocks = 1 if threads > 128 else 3 if self.K == 16 else 2
        blocks = max(1, min(blocks, MOST_SHARED // (memory + 1024)))
        cut = {"RW": each, "SIDE": max(16, min(self.K, 32)), "THREADS": threads}
        return {**cut, "BLOCKS": blocks, "memory": memory}


class BothGradients(Tiling):
    """How the kernel for both gradients is cut: as `transposed`, in smaller tiles."""

    @property
    def rows(self) -> int:
        """Of a tile."""
        return 8

    def cut(self) -> dict[str, int]:
        """Warps, threads and shared memory."""
        sides, each = max(1, self.K // 32), 4 if self.K == 16 else 2
        some = self.C // 16 * (self.K // 16)
        turns = max(1, min(4 // some, self.strips * (self.rows // 4)))
        threads = 32 * (self.strips * (self.rows // each) * sides + some * turns)
        weights = 9 * self.C * self.K * 2
        tiles = 4 * self.tile + 2 * self.pixels * (self.K + 8) * 2
        memory = tiles + weights + 12 * (self.C + self.K)
        cut = {"WN": sides, "RW": each, "SIDE": 16, "HELD": 0, "THREADS": threads}
        return {**cut, "BLOCKS": min(2, MOST_SHARED // (memory + 1024)), "memory": memory}


def tiling_of(case: Case) -> Tiling | None:
    """How the kernels for few channels cut a convolution; None where they cannot do it.

    Its stride must be the same both ways; groups, dilation and bias they do not know.
    """
    (high, wide), (stride, _) = case.taps, case.window.stride
    if (high, wide, *case.window.rim) not in ((3, 3, 1, 1), (1, 1, 0, 0)) or stride not in (1, 2):
        return None
    image = case.inputs <= 4 and stride == 1
    channels, given = (16, 4) if image else (case.inputs, case.inputs)
    grid = case.height // stride, case.width // stride
    found = Tiling(channels, given, case.inputs, case.outputs, *grid, high * wide, stride)
    fits = (
        channels in _CHANNELS
        and case.outputs in _CHANNELS
        and (case.height % stride, case.width % stride) == (0, 0)
        and found.GW in (8, 16, 32)
        and found.GH % found.rows == 0
        and (found.images == 1 or found.rows == found.GH)
        and case.contiguous
        and all(t.forward()["memory"] <= MOST_SHARED for t in (found, transposed(found)))
        and found.weight()["memory"] <= MOST_SHARED
    )
    return found if fits else None


def transposed(own: Tiling) -> Tiling:
    """The convolution that the input gradient is."""
    up = int(own.STRIDE == 2)
    return Tiling(own.K, own.K, own.K, own.C, own.GH, own.GW, own.TAPS, 1, up)
