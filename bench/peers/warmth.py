"""Seconds in which a contender gets to its usual pace: its connections are made, its plans are
laid, its neighbours are known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def warm_up(work: Callable[[], object]) -> None:
    """Do it once, then again for a while."""
    until = time.monotonic() + float(os.environ.get("BENCH_WARMTH", "2"))
    work()
    while time.monotonic() < until:
        work()
