"""Tokens of texts: bytes, those of a tokenizer's file, or files that hold tokens already."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partavg.sentences import shown

Tokens = NDArray[Any]
"""Numbers of tokens, unsigned and as narrow as the vocabulary allows."""

TOKEN_FILE = ".bin"
"""How files end that hold tokens: uint16, as nanoGPT and modded-nanogpt write them."""

_MAGIC, _VERSION, _HEADER = 20240520, 1, 256  # modded-nanogpt's; a header of int32
_END_BYTE = 0  # no text has it
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


class Tokenizer(NamedTuple):
    """Makes tokens of a text."""

    words: int
    """How many there are."""
    end: Tokens
    """What ends a document: one token, or none."""
    encode: Callable[[bytes], Tokens]


def tokenizer_of(name: str, root: Path) -> Tokenizer:
    """Of bytes, or of a file that Hugging Face's `tokenizers` wrote."""
    if name == "bytes":
        return Tokenizer(256, np.array([_END_BYTE], np.uint8), _as_bytes)
    if not isinstance(name, str):
        raise ValueError(f"tokenizer {shown(name)} is no name: give bytes, or the path of a file")
    path = located(root, name)
    if not path.is_file():
        raise ValueError(
            f"tokenizer {name!r} is neither bytes nor a file: give the path of a "
            f"tokenizer.json, absolute, below {root} or below the current folder"
        )
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(
            f"tokenizer {name!r} needs Hugging Face's tokenizers: pip install partavg[text]"
        ) from error
    try:
        made = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(
            f"{path} is no file of a tokenizer ({error}): give a tokenizer.json"
        ) from None
    words = max(made.get_vocab().values()) + 1  # numbers may have gaps
    known = [number for name in _ENDS if (number := made.token_to_id(name)) is not None]
    narrow = narrowest(words)

    def encode(text: bytes) -> Tokens:
        try:
            ids = made.encode(text.decode(), add_special_tokens=False).ids
        except Exception as error:
            raise ValueError(
                f"{path} cannot make tokens of the text that begins with {text[:30]!r} ({error}): "
                f"give a tokenizer that knows all of it, or has a token for what is unknown"
            ) from None
        return np.array(ids, narrow)

    return Tokenizer(words, np.array(known[:1], narrow), encode)


def narrowest(words: int) -> type[np.unsignedinteger[Any]] | type[np.int32]:
    """The type that tokens below `words` are kept in."""
    return np.uint8 if words <= 1 << 8 else np.uint16 if words <= 1 << 16 else np.int32


def read_tokens(path: Path) -> Tokens:
    """The tokens of a file, mapped into memory; with modded-nanogpt's header or without."""
    size = path.stat().st_size
    if not size or size % 2:
        raise ValueError(
            f"{path} has {size} bytes, and tokens of 2 bytes are expected: write it as uint16"
        )
    tokens: Tokens = np.memmap(path, "<u2", "c")  # private: what torch asks for, never written
    header = np.fromfile(path, "<i4", _HEADER)
    if len(header) < _HEADER or header[0] != _MAGIC:
        return tokens
    version, count = int(header[1]), int(header[2])
    if version != _VERSION:
        raise ValueError(
            f"{path} has a header of version {version}, and {_VERSION} is known: write it as "
            f"modded-nanogpt does"
        )
    inside = tokens[2 * _HEADER :]
    if len(inside) != count:
        raise ValueError(
            f"{path} holds {len(inside)} tokens, and its header says {count}: get it anew"
        )
    return inside


def located(root: Path, name: str) -> Path:
    """The file or folder that is meant: absolute, below the root, or below the current folder."""
    path = Path(name).expanduser()
    below = root / path
    return path.absolute() if path.exists() and not below.exists() else below


def stamp(path: Path) -> list[str | int]:
    """What changes when a file does."""
    known = path.stat() if path.is_file() else None
    return [str(path), known.st_size, known.st_mtime_ns] if known else [str(path)]


def check_below(tokens: Tokens, words: int, what: object) -> None:
    """Raise a ValueError if there is a token outside the vocabulary; looks at all of them."""
    most = max((int(piece.max()) for piece in _pieces(tokens)), default=-1)
    if most >= words:
        raise ValueError(
            f"{what} has the token {most}, and the vocabulary ends at {words - 1}: set data.words "
            f"to {most + 1} or more"
        )


def _pieces(tokens: Tokens, size: int = 1 << 24) -> list[Tokens]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def _as_bytes(text: bytes) -> Tokens:
    return np.frombuffer(text, np.uint8)
