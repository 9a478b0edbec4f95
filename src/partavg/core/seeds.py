"""One seed for a run; everything random is a pure function of it and of where it is used."""

import hashlib


def fold(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one use: `fold(seed, "batches", worker, pass)`.

    >>> fold(0, "split") == fold(0, "split") != fold(1, "split")
    True
    """
    text = "/".join(map(str, (seed, *path)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
