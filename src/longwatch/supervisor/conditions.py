"""What programs wait for in each other, and what makes one ready: two lists of words."""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """What a program may wait for in another one."""

    STARTED = "started"
    READY = "ready"
    COMPLETED = "completed"


class Readiness(StrEnum):
    """What makes a program ready: that it is up, that it is healthy, or that it says so
    (`READY=1`).
    """

    UP = "up"
    HEALTHY = "healthy"
    NOTIFY = "notify"
