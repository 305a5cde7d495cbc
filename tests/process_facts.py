"""Facts of processes that may end while a test reads them: an ended process has none, and no read
raises.
"""

from __future__ import annotations

from contextlib import suppress

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Its arguments; empty for a zombie and for a process that has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def process_name(process: psutil.Process) -> str:
    """Its name without the part after a colon, by which runc names its stages; may be empty."""
    with suppress(psutil.Error):
        return process.name().partition(":")[0]
    return ""


def is_zombie(process: psutil.Process) -> bool:
    """Whether it has ended and waits for its parent to reap it."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return False
