"""Numeric arrays in MATLAB's version 5 files, as far as datasets need them.

The format is described in MathWorks, "MAT-File Format", section "Level 5 MAT-File Format".
"""

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {
    1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8",
    13: "<u8",
}  # fmt: skip
_NUMERIC_CLASSES = range(6, 16)


def read(path: Path) -> dict[str, NDArray[np.generic]]:
    """The numeric arrays of a file by name, each of the type that it is stored as."""
    arrays: dict[str, NDArray[np.generic]] = {}
    with path.open("rb") as file:
        header = file.read(_HEADER)
        if header[124:] != b"\x00\x01IM":
            raise ValueError(f"{path} is not a MATLAB file of version 5: get the original")
        try:
            while tag := file.read(8):
                kind, size = struct.unpack("<II", tag)
                content = memoryview(file.read(size))
                if kind == _COMPRESSED:
                    content = memoryview(zlib.decompress(content))
                    kind, size = struct.unpack_from("<II", content)
                    content = content[8 : 8 + size]
                if kind == _MATRIX:
                    arrays |= _matrix(content)
        except (struct.error, zlib.error, ValueError, LookupError) as error:
            raise ValueError(f"{path} is damaged ({error}): get the original") from None
    return arrays


def _matrix(content: memoryview) -> dict[str, NDArray[np.generic]]:
    """A matrix is four elements: flags, of which the first byte is the class, axes, name, data."""
    (_, flags), content = _element(content)
    if flags[0] not in _NUMERIC_CLASSES:
        return {}
    (_, axes), content = _element(content)
    (_, name), content = _element(content)
    (kind, data), _ = _element(content)
    shape = np.frombuffer(axes, "<i4")
    array = np.frombuffer(data, _NUMBERS[kind]).reshape(shape, order="F")
    return {bytes(name).decode("ascii"): array}


def _element(content: memoryview) -> tuple[tuple[int, memoryview], memoryview]:
    """The kind and the bytes of the first element, and what follows it."""
    kind, size = struct.unpack_from("<II", content)
    if kind >> 16:  # a small element has its size in the upper half and its bytes in the tag
        return (kind & 0xFFFF, content[4 : 4 + (kind >> 16)]), content[8:]
    return (kind, content[8 : 8 + size]), content[8 + -(-size // 8) * 8 :]
