"""docs/faults.md says what tests saw, all of it and nothing else."""

import importlib
from pathlib import Path

from tests.flower import faults


def test_the_page_has_a_row_for_each_fault_that_is_tested(record: bool) -> None:
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"tests.flower.{file.stem}")
    rows = faults.read()
    if record:
        kept = {
            group: {what: rows[group][what] for what in whats if (group, what) in faults.REGISTERED}
            for group, whats in rows.items()
        }
        faults.write({group: whats for group, whats in kept.items() if whats})
        rows = faults.read()
    listed = {(group, what) for group, whats in rows.items() for what in whats}
    assert listed == faults.REGISTERED, "pytest --record tests/flower"
    assert len(listed) >= 30
