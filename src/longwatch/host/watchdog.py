"""The watchdog kills a process whose loops no longer beat, and records every stack first.

Steps on a stall, in this order because each may be the last that works
    1. The stacks of all threads go to the crash file, a regular file that is already open.
    2. As much of that as stderr takes at once goes to stderr.
    3. `before_kill` marks the rows that are to blame and notifies the supervisor of this process.
    4. A thread writes the log lines, and is waited for one second: a logger can block for ever.
    5. SIGKILL. PID 1 of a container cannot send SIGKILL to itself, so `os._exit(137)` follows.

A timer in C backs up this thread, because code that holds the GIL also blocks this thread. It ends
the process (exit code 1, stacks in the crash file) if no round has come for the threshold and two
intervals. A process has one such timer. The watchdog that was started first has it, and when that
one is stopped, the next.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf, isfinite
from typing import ClassVar, NamedTuple, Self

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import LoopStalled, WatchdogRoundSkipped
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.crash_file import CrashFile
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service

LOGGER = "longwatch.runtime.watchdog"
SIGKILL_EXIT_CODE = 128 + signal.SIGKILL
_REPORT_TIMEOUT = 1.0
"""Seconds that any step besides the check itself may take: log lines, observers."""


class BeatAge(NamedTuple):
    """A loop and the seconds since its last beat."""

    name: str
    elapsed: float


ReadBeatAges = Callable[[], Sequence[BeatAge]]
"""Returns the ages of the beats of all watched loops."""


class Watchdog(Service):
    """Checks heartbeats every interval, and kills the process when one is older than the threshold.

    Watches from `start` on. The first parameters are the public contract; a group uses the others.
    Use `with_reader` to watch heartbeats that come and go.
    """

    def __init__(  # noqa: PLR0913 - each is optional and has its own meaning
        self,
        heartbeats: Sequence[Heartbeat],
        *,
        stall_threshold: float = 720.0,
        check_interval: float = 60.0,
        loop_names: Sequence[str] | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
        crash_file: CrashFile | None = None,
        before_kill: Callable[[Sequence[BeatAge]], object] = lambda _: None,
    ) -> None:
        super().__init__(name="watchdog", clock=clock)
        _require_positive("stall_threshold", stall_threshold)
        _require_positive("check_interval", check_interval)
        names = (
            [f"loop-{number}" for number in range(len(heartbeats))]
            if loop_names is None
            else list(loop_names)
        )
        if len(names) != len(heartbeats):
            raise UsageError(
                f"{len(heartbeats)} heartbeats and {len(names)} loop_names; give one name for "
                f"each, or none at all"
            )
        self.stall_threshold = stall_threshold
        self.check_interval = check_interval
        watched = tuple(zip(names, heartbeats, strict=True))
        self._read_beat_ages: ReadBeatAges = lambda: [
            BeatAge(name, beat.elapsed()) for name, beat in watched
        ]
        self._events = events or Events()
        self._crash_file = crash_file or CrashFile("watchdog", clock=clock)
        self._owns_file = crash_file is None
        self._before_kill = before_kill
        self._backstop = _Backstop()
        self._checked_at = -inf
        self._skipped = False
        cadence = Cadence(interval=check_interval, immediately=False)
        self._periodic = Periodic(self._round, cadence, name="watchdog", clock=clock)

    @classmethod
    def with_reader(  # noqa: PLR0913 - as above
        cls,
        read_beat_ages: ReadBeatAges,
        *,
        stall_threshold: float,
        check_interval: float,
        clock: Clock,
        events: Events,
        crash_file: CrashFile,
        before_kill: Callable[[Sequence[BeatAge]], object],
    ) -> Self:
        """Make a watchdog that calls `read_beat_ages` in each round for the loops to watch."""
        made = cls(
            (),
            stall_threshold=stall_threshold,
            check_interval=check_interval,
            clock=clock,
            events=events,
            crash_file=crash_file,
            before_kill=before_kill,
        )
        made._read_beat_ages = read_beat_ages
        return made

    @property
    def in_own_thread(self) -> bool:
        return self._periodic.in_own_thread

    def _start(self) -> None:
        if self._owns_file:
            self._crash_file.open()
        self._checked_at, self._skipped = self._clock.monotonic(), False
        try:
            self._backstop.arm(self._crash_file, self.stall_threshold + 2 * self.check_interval)
            self._periodic.start()
        except BaseException:
            self._backstop.disarm()
            self._close_file()
            raise

    def _stop(self, deadline: Deadline) -> bool:
        self._backstop.disarm()
        stopped = self._periodic.stop(deadline=deadline)
        if stopped:
            self._close_file()
        return stopped

    def _close_file(self) -> None:
        if self._owns_file:
            self._crash_file.close()

    # --- one round ---

    def _round(self) -> None:
        self._backstop.rearm()
        try:
            if not self._is_late() and (stalled := self._check_heartbeats()):
                self._terminate(stalled)
        except Exception as error:  # noqa: BLE001 - no error may end the watchdog
            why = error
            _run_bounded(
                lambda: _log(logging.ERROR, "Watchdog: a check failed; the checks continue", why)
            )

    def _check_heartbeats(self) -> list[tuple[str, float]]:
        """Return the loops whose last beat is older than the threshold; has no effect."""
        return [stall for stall in self._read_beat_ages() if stall.elapsed > self.stall_threshold]

    def _is_late(self) -> bool:
        """Whether this round is so late that the whole process was held up.

        Then loops get one more interval to beat.
        """
        now = self._clock.monotonic()
        late = now - self._checked_at - self.check_interval
        self._checked_at = now
        self._skipped = late > self.check_interval / 2 and not self._skipped
        if self._skipped:
            _run_bounded(lambda: self._events.emit(WatchdogRoundSkipped(late_by=late)))
        return self._skipped

    def _terminate(self, stalled: Sequence[tuple[str, float]]) -> None:
        try:
            self._report_stall([BeatAge(name, elapsed) for name, elapsed in stalled])
        finally:
            kill_own_process()

    def _report_stall(self, stalls: Sequence[BeatAge]) -> None:
        limit = f"(threshold: {self.stall_threshold:.1f}s)"
        words = [f"Watchdog: {name} stalled for {elapsed:.1f}s {limit}" for name, elapsed in stalls]
        self._crash_file.dump("; ".join(words))
        last = [*words, "Watchdog: terminating process due to stalled workers"]
        reports = (
            self._crash_file.copy_to_stderr,
            lambda: self._before_kill(stalls),
            lambda: _log_all(last),
            lambda: self._emit_stalls(stalls),
        )
        for report in reports:
            _run_bounded(report)

    def _emit_stalls(self, stalls: Sequence[BeatAge]) -> None:
        for name, elapsed in stalls:
            stacks = str(self._crash_file.path)
            self._events.emit(
                LoopStalled(
                    loop=name, elapsed=elapsed, threshold=self.stall_threshold, stacks=stacks
                )
            )


class _Backstop:
    """The timer in C, if this watchdog has it.

    It is off around a fork. Otherwise the child would wait for ever for the timer's thread, which
    it does not have.
    """

    _holder: ClassVar[_Backstop | None] = None
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _fork_hooks_registered: ClassVar[bool] = False

    def __init__(self) -> None:
        self._file: CrashFile | None = None
        self._seconds = 0.0
        self._due = 0.0

    def arm(self, file: CrashFile, seconds: float) -> None:
        with _Backstop._lock:
            _Backstop._register_fork_hooks()
            self._file, self._seconds = file, seconds
            self._due = time.monotonic() + seconds
            self.schedule()

    def rearm(self) -> None:
        """Start the timer anew. Errors are ignored: the watchdog works without it."""
        with _Backstop._lock, suppress(RuntimeError, OSError, ValueError):
            self._due = time.monotonic() + self._seconds
            self.schedule()

    def disarm(self) -> None:
        with _Backstop._lock:
            self._file = None
            if _Backstop._holder is self:
                faulthandler.cancel_dump_traceback_later()
                _Backstop._holder = None

    def schedule(self) -> None:
        """Start or continue the timer, unless another watchdog has it."""
        if self._file is not None and _Backstop._holder in {None, self}:
            _Backstop._holder = self
            left = max(self._due - time.monotonic(), 0.001)
            faulthandler.dump_traceback_later(left, exit=True, file=self._file.fileno)

    # --- forks ---

    @classmethod
    def _register_fork_hooks(cls) -> None:
        if not cls._fork_hooks_registered:
            os.register_at_fork(
                before=cls._before_fork,
                after_in_parent=cls._in_parent,
                after_in_child=cls._in_child,
            )
            cls._fork_hooks_registered = True

    @classmethod
    def _before_fork(cls) -> None:
        cls._lock.acquire()
        if cls._holder is not None:
            faulthandler.cancel_dump_traceback_later()

    @classmethod
    def _in_parent(cls) -> None:
        with suppress(RuntimeError, OSError, ValueError):
            if cls._holder is not None:
                cls._holder.schedule()
        cls._lock.release()

    @classmethod
    def _in_child(cls) -> None:
        cls._holder, cls._lock = None, threading.RLock()


def _log_all(lines: Sequence[str]) -> None:
    for line in lines:
        _log(logging.CRITICAL, line)


def _log(level: int, line: str, why: BaseException | None = None) -> None:
    logging.getLogger(LOGGER).log(level, line, exc_info=why)


def _run_bounded(call: Callable[[], object]) -> None:
    """Make the call in a thread and wait for a limited time, because it may block for ever."""
    thread = BackgroundThread(call, name="watchdog-word", report_errors=True)
    thread.start(inline_fallback=True)
    thread.done.block(_REPORT_TIMEOUT)


def kill_own_process() -> None:
    """Kill this process at once, whatever other threads do."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(SIGKILL_EXIT_CODE)


def _require_positive(name: str, seconds: float) -> None:
    if not (isfinite(seconds) and seconds > 0):
        raise UsageError(f"{name} must be a number of seconds above 0, not {seconds}")
