"""Pieces of the sentences that errors say."""

import reprlib


def shown(value: object) -> str:
    """A value as a sentence names it: plain ones as they are, others by their name or their type.

    >>> shown("0.1"), shown(len), shown([1, 2]), shown("a" * 100)
    ("'0.1'", 'len', 'list', "'aaaaaaaaaaaa...aaaaaaaaaaaaa'")
    """
    if isinstance(value, str | bytes | int | float | complex | None):
        return " ".join(reprlib.repr(value).split())
    return str(getattr(value, "__name__", type(value).__name__))


def reason(error: BaseException) -> str:
    r"""The first line of what an error says, or its type where it says nothing.

    >>> reason(RuntimeError("out of range\nat line 3")), reason(KeyError())
    ('out of range', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def cleaned(text: str, most: int = 300) -> str:
    r"""A text of somebody else's on one line: without control characters, and cut.

    >>> cleaned("\x1b[31mdisk\n full"), cleaned("a" * 5_000_000, 5)
    ('[31mdisk full', 'aaaa…')
    """
    some = text[: 4 * most]
    words = " ".join("".join(c if c.isprintable() else " " for c in some).split())
    return words if len(words) <= most and len(some) == len(text) else words[: most - 1] + "…"


def inside(title: str) -> str:
    """A title as it stands within a sentence: only a first word loses its capital.

    >>> inside("Test loss"), inside("AUC"), inside("Mean IoU")
    ('test loss', 'AUC', 'mean IoU')
    """
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def opening(words: str) -> str:
    """Words as they begin a sentence or stand above a chart.

    >>> opening("test loss"), opening("mean IoU")
    ('Test loss', 'Mean IoU')
    """
    return words[:1].upper() + words[1:]
