"""Any texts, for language models: files and folders, or files of tokens.

A document is a file, or what is between lines `<|endoftext|>` in one. It comes from a source: a
file, or of the files in a folder what lies directly below that folder.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from partavg.core.arguments import check_number, check_whole
from partavg.core.seeds import fold
from partavg.data import cache
from partavg.data.dataset import Dataset
from partavg.data.source import Tensors
from partavg.data.tokens import (
    TOKEN_FILE,
    Tokenizer,
    Tokens,
    check_below,
    located,
    read_tokens,
    stamp,
    tokenizer_of,
)
from partavg.data.windows import Part, windowed
from partavg.sentences import shown

_BETWEEN = re.compile(rb"^<\|endoftext\|>[ \t]*\r?\n?", re.MULTILINE)
_REMEDY = "name files or folders, absolute, below the root of data or below the current folder"

Paths = str | tuple[str, ...]


class Document(NamedTuple):
    """A text, or its tokens, and where it is from."""

    source: str
    text: bytes | Tokens


def load(
    root: Path,
    *,
    files: Paths = (),
    test_files: Paths = (),
    context: int = 256,
    stride: int = 0,
    tokenizer: str = "bytes",
    words: int = 0,
    test: float = 0.05,
    seed: int = 0,
) -> Dataset:
    """Windows [n, context] of tokens, and those after them; as many classes as words.

    Without `test_files`, documents with about a share `test` of all bytes are drawn by `seed` and
    kept for testing or, if all are longer than that, the end of the longest.
    """
    paths, test_paths = (
        _found(root, _listed(some), f"data.{what}")
        for some, what in ((files, "files"), (test_files, "test_files"))
    )
    if not paths:
        raise ValueError(f"data.files is empty: {_REMEDY}")
    _check_once(paths, test_paths)
    if not test_paths:
        _check_share(test)
    check_whole("words", words, 0)
    ready = {path.suffix == TOKEN_FILE for _, path in (*paths, *test_paths)}
    if len(ready) > 1:
        raise ValueError(
            f"some of data.files and data.test_files end in {TOKEN_FILE} and hold tokens, and some "
            f"are texts: use one kind"
        )
    if ready == {True}:
        if not words:
            raise ValueError(
                f"{paths[0][1]} holds tokens: set data.words to the size of their vocabulary, "
                f"50257 for GPT-2's"
            )
        if tokenizer != "bytes":
            raise ValueError(
                f"{paths[0][1]} holds tokens, and data.tokenizer = {tokenizer!r} is for "
                f"texts: leave it out"
            )
        how = Tokenizer(words, np.empty(0, np.uint16), _no_text)
    else:
        how = tokenizer_of(tokenizer, root)
        if 0 < words < how.words:
            raise ValueError(
                f"words {words} is below the {how.words} of tokenizer {tokenizer!r}: leave it out"
            )

    def make() -> Tensors:
        train, held = _documents(paths), _documents(test_paths)
        if not test_paths:
            train, held = held_out(train, test, seed)
        return encoded(train, held, how)

    if ready == {True} and len(paths) == 1 and len(test_paths) < 2:
        stored = make()  # mapped as it is
    else:
        named = [[source, *stamp(path)] for source, path in (*paths, *test_paths)]
        about = json.dumps([named, len(paths), stamp(located(root, tokenizer)), test, seed])
        stored = cache.kept("text", about, root, make)
    called, tested = (", ".join(_listed(some)) for some in (files, test_files or files))
    return of_tensors(stored, max(words, how.words), context, stride, called, tested)


def of_tensors(
    stored: Tensors,
    words: int,
    context: int,
    stride: int,
    called: str,
    tested: str | None = None,
) -> Dataset:
    """The windows of what `encoded` made."""
    train, test = (
        Part(*(stored[f"{part}_{what}"] for what in ("tokens", "starts", "sources")))
        for part in ("train", "test")
    )
    length = float(stored["bytes_per_token"]) or None
    names = called, tested or called
    return windowed(
        train, test, words, context=context, stride=stride, bytes_per_token=length, called=names
    )


def held_out(
    documents: Sequence[Document], share: float, seed: int
) -> tuple[list[Document], list[Document]]:
    """Documents to train on, and those that make up about a share of all for testing."""
    order = np.random.default_rng(fold(seed, "documents")).permutation(len(documents))
    wanted, taken = share * sum(len(document.text) for document in documents), 0
    chosen: set[int] = set()
    for place in order.tolist():
        length = len(documents[place].text)
        if taken + length / 2 <= wanted and len(chosen) < len(documents) - 1:
            chosen.add(place)
            taken += length
    train = [document for place, document in enumerate(documents) if place not in chosen]
    if chosen:
        return train, [documents[place] for place in sorted(chosen)]
    longest = max(range(len(train)), key=lambda place: len(train[place].text))
    source, text = train[longest]
    cut = _cut(text, len(text) - max(1, round(min(wanted, len(text) / 2))))
    train[longest] = Document(source, text[:cut])
    return train, [Document(source, text[cut:])]


def encoded(train: Sequence[Document], test: Sequence[Document], how: Tokenizer) -> Tensors:
    """All tokens, where documents begin, what they are from, and the length of a token."""
    names = sorted({document.source for document in (*train, *test)})
    numbers = {name: number for number, name in enumerate(names)}
    made: Tensors = {}
    for part, documents in (("train", train), ("test", test)):
        each = [_tokens(document, how) for document in documents]
        ends = np.cumsum([len(tokens) for tokens in each])
        joined = each[0] if len(each) == 1 else np.concatenate(each)
        made[f"{part}_tokens"] = _tensor(joined)
        made[f"{part}_starts"] = torch.tensor([0, *ends[:-1].tolist()])
        made[f"{part}_sources"] = torch.tensor([numbers[one.source] for one in documents])
    texts = [document.text for document in test]
    size = sum(len(text) for text in texts if isinstance(text, bytes))
    ended = len(how.end) * len(texts)  # a mark counts as the byte that it stands for
    made["bytes_per_token"] = torch.tensor((size + ended) / len(made["test_tokens"]) if size else 0)
    return made


def documents_of(source: str, text: bytes) -> Iterator[Document]:
    """What lies between the marks in a text; empty ones are left out."""
    for piece in _BETWEEN.split(text):
        if piece.strip():
            yield Document(source, piece)


def _documents(paths: Iterable[tuple[str, Path]]) -> list[Document]:
    found: list[Document] = []
    for source, path in paths:
        if path.suffix == TOKEN_FILE:
            found.append(Document(source, read_tokens(path)))
            continue
        text = path.read_bytes()
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8, or leave it out"
            ) from None
        inside = list(documents_of(source, text))
        if not inside:
            raise ValueError(f"{path} has nothing but white space: give a text, or leave it out")
        found += inside
    return found


def _tokens(document: Document, how: Tokenizer) -> Tokens:
    if isinstance(document.text, bytes):
        return np.concatenate([how.encode(document.text), how.end])
    check_below(document.text, how.words, document.source)
    return document.text


def _tensor(tokens: Tokens) -> Tensor:
    """The same memory, as narrow as it is; bytes of a text are copied, nobody may write there."""
    return torch.from_numpy(tokens if tokens.flags.writeable else tokens.copy())


def _cut(text: bytes | Tokens, place: int) -> int:
    """Where to cut: of a text after a line or, in a line of its own, before a letter."""
    if not isinstance(text, bytes):
        return place
    line = text.rfind(b"\n", place // 2, place) + 1
    while not line and 0 < place < len(text) and text[place] & 0xC0 == 0x80:
        place -= 1
    return line or place


def _listed(named: Paths) -> list[str]:
    """The names that are given, one or several."""
    several: Any = (named,) if isinstance(named, str) else named
    if not isinstance(several, tuple) or not all(isinstance(name, str) for name in several):
        raise ValueError(f"files {shown(named)} are no names: give a path, or a list of them")
    return [name for name in several if name]


def _check_once(paths: Sequence[tuple[str, Path]], test_paths: Sequence[tuple[str, Path]]) -> None:
    """Nobody may train on what is tested on: refuse files that are named twice."""
    seen: set[Path] = set()
    for _, path in (*paths, *test_paths):
        real = path.resolve()
        if real in seen:
            raise ValueError(
                f"data.files and data.test_files have {path} twice: name it once, so that nothing "
                f"to test on is trained on"
            )
        seen.add(real)


def _found(root: Path, named: Sequence[str], setting: str) -> list[tuple[str, Path]]:
    """The files that are meant, each with its source."""
    found: list[tuple[str, Path]] = []
    for name in named:
        path = located(root, name)
        if path.is_file():
            found.append((name, path))
            continue
        if not path.is_dir():
            what = "is neither a file nor a folder" if path.exists() else "is not there"
            raise ValueError(f"{setting} has {name!r}, and {path} {what}: {_REMEDY}")
        inside = [below for below in sorted(path.rglob("*")) if below.is_file()]
        seen = [below for below in inside if not _hidden(below.relative_to(path))]
        if not seen:
            raise ValueError(f"{path} holds no files: {_REMEDY}")
        found += [(f"{name}/{below.relative_to(path).parts[0]}", below) for below in seen]
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _check_share(test: float) -> None:
    check_number("test", test)
    if not 0 < test < 1:
        raise ValueError(f"test {test} is outside (0, 1): it is the share of text to test on")


def _no_text(text: bytes) -> Tokens:
    raise ValueError(f"files that end in {TOKEN_FILE} hold tokens, and here is a text: use one")
