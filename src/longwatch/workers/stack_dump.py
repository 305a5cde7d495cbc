"""Saves what a worker process is doing before it is killed: its stacks, else what the
kernel knows.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.host.background_thread import BackgroundThread

SAVE_TIMEOUT = 10.0
"""Seconds to save stacks; more than a process needs to write them."""
_POLL_INTERVAL = 0.02
_MAX_POLLS = 50


def save_stacks(pid: int, crash_file: Path | None, reason: str, clock: Clock) -> None:
    """Append to the crash file why the process is killed, and its stacks. A disk that does not
    answer holds this up for `SAVE_TIMEOUT` seconds.

    SIGUSR2 asks for the stacks, but only if the process handles it: the default action would kill
    it. A stopped process cannot answer, so its state in the kernel is saved.
    """
    if crash_file is None:
        return
    is_late = threading.Event()
    saving = BackgroundThread(
        partial(_save_stacks, pid, crash_file, reason, clock, is_late),
        name="worker-save-stacks",
        report_errors=True,
    )
    saving.start()
    real_clock = SystemClock()  # the wait is for the disk: a fake clock does not apply
    if not saving.wait(real_clock, Deadline.after(SAVE_TIMEOUT, real_clock)):
        is_late.set()


def _save_stacks(
    pid: int, crash_file: Path, reason: str, clock: Clock, is_late: threading.Event
) -> None:
    _append(crash_file, reason)
    if is_late.is_set():
        return  # by now that pid may be of another process
    status = _read(pid, "status")
    if (
        not is_stopped(status)
        and _catches_signal(status, signal.SIGUSR2)
        and _request_stacks(pid, crash_file, clock)
    ):
        return
    _append(crash_file, f"{status}\nwchan: {_read(pid, 'wchan')}")


def freeze(pid: int, clock: Clock) -> None:
    """Stop the process with SIGSTOP, and wait for a while until it is stopped."""
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
    _wait_until(lambda: is_stopped(_read(pid, "status")), clock)


def is_stopped(status: str) -> bool:
    """Whether a process is stopped, according to its /proc/PID/status."""
    return _field(status, "State")[:1] in {"T", "t", "Z", ""}


def _request_stacks(pid: int, crash_file: Path, clock: Clock) -> bool:
    """Ask the process for its stacks; whether they arrived."""
    before = _size(crash_file)
    with suppress(OSError):
        os.kill(pid, signal.SIGUSR2)
    came = _wait_until(lambda: _size(crash_file) > before, clock)
    seen = -1
    while came and seen != (size := _size(crash_file)):  # until no more comes
        seen = size
        clock.wait(Wakeup(), _POLL_INTERVAL)
    return came


def _size(path: Path) -> int:
    """The size of the file; 0 if it was removed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _wait_until(condition: Callable[[], bool], clock: Clock) -> bool:
    for _ in range(_MAX_POLLS):
        if condition():
            return True
        clock.wait(Wakeup(), _POLL_INTERVAL)
    return False


def _catches_signal(status: str, signum: int) -> bool:
    caught = _field(status, "SigCgt")
    return bool(caught) and bool(int(caught, 16) >> (signum - 1) & 1)


def _field(status: str, name: str) -> str:
    return next(
        (
            line.partition(":")[2].strip()
            for line in status.splitlines()
            if line.startswith(f"{name}:")
        ),
        "",
    )


def _read(pid: int, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def _append(crash_file: Path, text: str) -> None:
    with suppress(OSError):
        descriptor = os.open(
            crash_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600
        )
        try:
            os.write(descriptor, text.encode(errors="replace") + b"\n")
        finally:
            os.close(descriptor)
