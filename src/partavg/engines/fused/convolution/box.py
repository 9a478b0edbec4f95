"""How the pixels of networks with many channels are divided among the programs of their kernels."""

from typing import NamedTuple

Sizes = tuple[int, int, int]
"""Images of a worker, their height and width."""


class Box(NamedTuple):
    """Images, rows and columns of a tile of 128 pixels."""

    images: int
    rows: int
    columns: int

    @classmethod
    def of(cls, sizes: Sizes) -> "Box":
        """Powers of 2 that waste few pixels."""
        count, height, width = sizes
        columns = min(128, 1 << (width - 1).bit_length())
        shapes = [(128 // columns // rows, rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)]
        fitting = [(n, rows) for n, rows in shapes if n and count % n == 0]
        images, rows = min(fitting, key=lambda shape: (-(-height // shape[1]) * shape[1], shape[0]))
        return cls(images, rows, columns)

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return self.images * self.rows * self.columns

    def gapless(self, sizes: Sizes) -> bool:
        """Whether a worker's boxes one after another are its pixels one after another."""
        count, height, width = sizes
        blocks, tall, wide = self.grid(sizes)
        filled = blocks * tall * wide * self.pixels == count * height * width
        return self.columns == width and filled and (self.images == 1 or self.rows == height)

    def grid(self, sizes: Sizes) -> Sizes:
        """Boxes along the images of a worker, their rows and columns."""
        images, rows, columns = (-(-size // each) for size, each in zip(sizes, self, strict=True))
        return images, rows, columns
