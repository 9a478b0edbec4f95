"""The tables of docs/faults.md: each row is a fault that a test caused, and what it saw happen.

    @fault("Group", "what is done")
    def test_that(tmp_path: Path) -> str:
        ...
        return "what happened, in words, of what was asserted"

`pytest --record` rewrites a row; without it a test fails whose words the page does not have. Tests
with parameters name them: `@fault("Group", "it says {what}", what=CASES)`.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any

from filelock import FileLock

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
MARK = "<!-- below this line tests write: pytest --record tests/flower -->"
Rows = dict[str, dict[str, str]]
"""What is done, and what happens, by groups."""

REGISTERED: set[tuple[str, str]] = set()
"""Groups and faults of all tests that were imported."""


def fault(group: str, what: str, /, **over: Iterable[str]) -> Callable[[Any], Any]:
    """A test that returns in words what it saw happen."""
    for values in product(*over.values()):
        REGISTERED.add((group, what.format(**dict(zip(over, values, strict=True)))))

    def decorate(test: Callable[..., str]) -> Callable[..., None]:
        known = inspect.signature(test)

        @wraps(test)
        def tested(record: bool, **given: Any) -> None:
            if "record" in known.parameters:
                given["record"] = record
            happened = said(test(**given))
            name = what.format(**{key: given[key] for key in over})
            if record:
                with FileLock(PAGE.with_suffix(".lock")):
                    rows = read()
                    rows.setdefault(group, {})[name] = happened
                    write(rows)
                PAGE.with_suffix(".lock").unlink(missing_ok=True)
            assert read().get(group, {}).get(name) == happened, "pytest --record tests/flower"

        extra = inspect.Parameter("record", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        others = [p for p in known.parameters.values() if p.name != "record"]
        tested.__signature__ = inspect.Signature([extra, *others])  # type: ignore[attr-defined]
        return tested

    return decorate


def said(text: str) -> str:
    """Words as the page has them: without numbers that another machine would round otherwise."""
    text = re.sub(r"\d+\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+|\d{5,}", "…", " ".join(text.split()))
    return text.replace("|", "\\|")


def read() -> Rows:
    """The rows of the page."""
    rows: Rows = {}
    group = ""
    for line in PAGE.read_text(encoding="utf-8").partition(MARK)[2].splitlines():
        if line.startswith("## "):
            group = line[3:]
        elif line.startswith("| ") and not line.startswith("| what "):
            name, happened = re.split(r"(?<!\\)\|", line)[1:3]
            rows.setdefault(group, {})[name.strip()] = happened.strip()
    return rows


def write(rows: Rows) -> None:
    """Write the page anew, below its mark."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    lines = [head + MARK]
    for group, faults in rows.items():
        lines += ["", f"## {group}", "", "| what is done | what happens |", "|---|---|"]
        lines += [f"| {name} | {happened} |" for name, happened in faults.items()]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
