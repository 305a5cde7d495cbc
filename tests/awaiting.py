"""Waiting for what gives no sign that one could wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 30.0


def eventually(holds: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Whether this comes to hold in time."""
    end = time.monotonic() + patience
    while not (held := holds()) and time.monotonic() < end:
        threading.Event().wait(0.01)
    return held
