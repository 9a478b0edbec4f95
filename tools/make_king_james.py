"""Make the books of the King James Bible that the package ships, from Debian's `bible-kjv`.

    bible -f gen1:1-rev22:21 | python tools/make_king_james.py

A verse is a line, chapters are separated by an empty line, books by a form feed; without numbers,
compressed with xz.
"""

import lzma
import re
import sys
from itertools import groupby
from pathlib import Path

TARGET = Path(__file__).parent.parent / "src/partavg/data/king_james.xz"
BOOKS = ("Ge", "Psa", "Prv", "Eccl", "Mat", "John", "Rom", "Rev")


def main() -> None:
    """Write the file."""
    lines = (re.fullmatch(r"(.+?) ?(\d+):\d+\s+(.*)", line.strip()) for line in sys.stdin)
    verses = [line.groups() for line in lines if line]
    books = []
    for wanted in BOOKS:
        own = [verse for verse in verses if verse[0] == wanted]
        chapters = groupby(own, key=lambda verse: verse[1])
        books.append("\n\n".join("\n".join(v[2] for v in some) for _, some in chapters))
    text = "\f".join(books).encode()
    TARGET.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    sizes = {name: len(book) for name, book in zip(BOOKS, books, strict=True)}
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1e6:.2f} MB of {len(text):,} bytes, {sizes}")


if __name__ == "__main__":
    main()
