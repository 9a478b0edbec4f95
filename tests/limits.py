"""Limits of time: only something that hangs may meet one, on any machine and whatever else it does.

No test asserts how long something takes; a machine that is slower still than these limits allow
gets more time by PARTAVG_TEST_PATIENCE, a factor.
"""

import os


def seconds(limit: float = 500.0) -> float:
    """How long to wait for something that comes by itself.

    A little less than a whole test may take, so that what waited can say for what.
    """
    return limit * float(os.environ.get("PARTAVG_TEST_PATIENCE", "1"))
