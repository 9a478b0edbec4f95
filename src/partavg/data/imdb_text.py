"""IMDB's film reviews as a text, for language models; the same files as `imdb`."""

from pathlib import Path

from partavg.data import cache, imdb
from partavg.data.dataset import Dataset
from partavg.data.source import Tensors
from partavg.data.text import Document, encoded, of_tensors
from partavg.data.tokens import located, stamp, tokenizer_of


def load(root: Path, *, context: int = 256, stride: int = 0, tokenizer: str = "bytes") -> Dataset:
    """The training reviews to train on, the test reviews to test on; sources are their stars."""
    layout = imdb.SOURCE.layouts[0]
    if lacks := layout.lacks(root):
        raise ValueError(
            f"imdb_text in {root} lacks {lacks[0]}: {imdb.SOURCE.remedy.partition(' or Keras')[0]}"
            f" there"
        )
    how = tokenizer_of(tokenizer, root)

    def make() -> Tensors:
        train, test = (
            [
                Document(stars, text.encode())
                for folder in layout.files
                if f"/{part}/" in folder
                for stars, text in imdb.reviews(root / folder)
            ]
            for part in ("train", "test")
        )
        return encoded(train, test, how)

    about = f"{layout.fingerprint(root)} {stamp(located(root, tokenizer))} by stars"
    stored = cache.kept("imdb_text", about, root, make)
    return of_tensors(stored, how.words, context, stride, "imdb_text")
