"""Make the subset of Fashion-MNIST that the package ships, from the published files.

    python tools/make_fashion_subset.py FOLDER-WITH-THE-FOUR-GZ-FILES

The first 12,000 training and the first 2,000 test images, one row of 785 bytes each (the label,
then the pixels), compressed with xz.
"""

import gzip
import lzma
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "src/partavg/data/fashion_subset.xz"


def rows(folder: Path, name: str, count: int) -> np.ndarray:
    """The first `count` images of a pair of IDX files, each behind its label."""
    images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784)
    return np.column_stack([np.frombuffer(labels, np.uint8, offset=8), pixels])[:count]


def main() -> None:
    """Write the file."""
    folder = Path(sys.argv[1])
    table = np.concatenate([rows(folder, "train", 12_000), rows(folder, "t10k", 2_000)])
    TARGET.write_bytes(lzma.compress(table.tobytes(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1e6:.2f} MB, {table.shape}")


if __name__ == "__main__":
    main()
