"""Eight books of the King James Bible, 1611, that come with the package; in the public domain.

Genesis, Psalms, Proverbs, Ecclesiastes, Matthew, John, Romans and Revelation. Made by
`tools/make_king_james.py`.
"""

import lzma
from importlib import resources
from pathlib import Path

from partavg.data.dataset import Dataset
from partavg.data.text import Document, encoded, held_out, of_tensors
from partavg.data.tokens import tokenizer_of


def load(
    root: Path,
    *,
    context: int = 256,
    stride: int = 0,
    tokenizer: str = "bytes",
    test: float = 0.05,
    seed: int = 0,
) -> Dataset:
    """860 kB of text in 8 books, the sources; a chapter is a document."""
    packed = resources.files("partavg.data").joinpath("king_james.xz").read_bytes()
    documents = [
        Document(f"{place}", chapter.encode())
        for place, book in enumerate(lzma.decompress(packed).decode().split("\f"))
        for chapter in book.split("\n\n")
    ]
    how = tokenizer_of(tokenizer, root)
    stored = encoded(*held_out(documents, test, seed), how)
    return of_tensors(stored, how.words, context, stride, "king_james")
