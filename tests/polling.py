"""Waiting for what gives no sign that one could wait for.

Files that other processes write while a test reads them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT = 30.0


def eventually(condition: Callable[[], bool], timeout: float = TIMEOUT) -> bool:
    """Whether this comes to hold in time."""
    end = time.monotonic() + timeout
    while not (held := condition()) and time.monotonic() < end:
        threading.Event().wait(0.01)
    return held


def complete_lines(path: Path) -> list[str]:
    """The whole lines of a file; the last one may just be written, and there may be no file yet."""
    try:
        whole, _, _ = path.read_text().rpartition("\n")
    except FileNotFoundError:
        return []
    return whole.splitlines()
