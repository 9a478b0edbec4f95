"""Whatever a public function is given, it works or says in one sentence why not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import seconds

import partavg

UNCALLED = {
    "Abilities", "About", "Aggregate", "Comparison", "Discrepancy", "Diverged", "Evaluation",
    "Metric", "Moment", "Record", "Results", "RunInfo", "Sink", "Solver", "Span", "Step", "Swept",
    "Sync",
}  # fmt: skip
"""What users get, or write themselves; a Span is looked at by its Partition."""
LATER = {"Samples"}
"""Tested where it is: what `as_samples` makes."""


def problems() -> dict[str, dict[str, str]]:
    """In a process of its own: here the shapes of tensors are checked, there only by ourselves."""
    root = Path(__file__).parents[1]
    words = [sys.executable, "-m", "tests.fuzz"]
    done = subprocess.run(
        words, cwd=root, capture_output=True, text=True, timeout=seconds(600), check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_bad_input_for_every_public_name_is_refused_in_a_sentence() -> None:
    found = problems()
    lines = [
        f"{call}: {what}: {said}" for call, all_ in found.items() for what, said in all_.items()
    ]
    assert not lines, "\n".join(lines)
    tried = {call.partition("(")[0].partition(".")[0].partition(" ")[0] for call in found}
    assert set(partavg.__all__) == tried | UNCALLED | LATER
