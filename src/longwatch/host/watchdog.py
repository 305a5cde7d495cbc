"""The watchdog: ends a process whose loops do not beat any more, with every stack on record.

What happens on a stall, in this order, because each step may be the last that works
    1. stacks of all threads to the crash file, which is a regular file and open already
    2. as much of that to stderr as stderr takes at once
    3. `before_kill`: the rows that are to blame are marked, whoever supervises us is told
    4. the log lines, in a thread of their own that is waited for a second: a logger can be blocked
       for ever
    5. SIGKILL; PID 1 of a container does not get that from itself, so `os._exit(137)` stands behind
       it

Behind this thread stands a timer in C, which ends the process (with 1, stacks in the crash file)
when no round has come for the threshold and two intervals: code that holds the GIL holds this
thread, too. There is one such timer in a process, and the watchdog that was started first has it;
when that one is stopped, the next.
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
from math import isfinite
from typing import ClassVar, NamedTuple, Self

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events, LoopStalled, WatchSkipped
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import UsageError
from longwatch.host.errand import Errand
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.host.stacks import CrashFile

LOGGER = "longwatch.runtime.watchdog"
KILLED = 128 + signal.SIGKILL
_BRIEFLY = 1.0
"""Seconds that anything may take that is not the watch itself: log lines, observers."""


class Stall(NamedTuple):
    """A loop, and for how long it has given no beat."""

    name: str
    elapsed: float


Look = Callable[[], Sequence[Stall]]
"""How old the beats of everything that is watched are, now."""


class Watchdog(Service):
    """Looks at heartbeats every interval, and ends the process when one is older than the
    threshold. Watches from `start` on.

    The first parameters are the contract; what follows them is what a group adds. Those who need to
    watch what comes and goes make one with `over`.
    """

    def __init__(  # noqa: PLR0913 - heartbeats and their surroundings, each optional
        self,
        heartbeats: Sequence[Heartbeat],
        *,
        stall_threshold: float = 720.0,
        check_interval: float = 60.0,
        loop_names: Sequence[str] | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
        crash_file: CrashFile | None = None,
        before_kill: Callable[[Sequence[Stall]], object] = lambda _: None,
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
        self._look: Look = lambda: [Stall(name, beat.elapsed()) for name, beat in watched]
        self._events = events or Events()
        self._crash_file = crash_file or CrashFile("watchdog", clock=clock)
        self._owns_file = crash_file is None
        self._before_kill = before_kill
        self._backstop = _Backstop()
        self._looked_at = 0.0
        self._skipped = False
        cadence = Cadence(interval=check_interval, immediately=False)
        self._periodic = Periodic(self._round, cadence, name="watchdog", clock=clock)

    @classmethod
    def over(  # noqa: PLR0913 - as above
        cls,
        look: Look,
        *,
        stall_threshold: float,
        check_interval: float,
        clock: Clock,
        events: Events,
        crash_file: CrashFile,
        before_kill: Callable[[Sequence[Stall]], object],
    ) -> Self:
        """One that asks each time what there is to watch."""
        made = cls(
            (),
            stall_threshold=stall_threshold,
            check_interval=check_interval,
            clock=clock,
            events=events,
            crash_file=crash_file,
            before_kill=before_kill,
        )
        made._look = look
        return made

    @property
    def inside(self) -> bool:
        return self._periodic.inside

    def _start(self) -> None:
        if self._owns_file:
            self._crash_file.open()
        self._looked_at, self._skipped = self._clock.monotonic(), False
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
        self._backstop.again()
        try:
            if not self._is_late() and (stalled := self._check_heartbeats()):
                self._bite(stalled)
        except Exception as error:  # noqa: BLE001 - whatever it is, the watch goes on
            why = error
            _briefly(
                lambda: _log(logging.ERROR, "Watchdog: a check failed; the watch goes on", why)
            )

    def _check_heartbeats(self) -> list[tuple[str, float]]:
        """Those whose last beat is older than the threshold; looks, and does nothing."""
        return [stall for stall in self._look() if stall.elapsed > self.stall_threshold]

    def _is_late(self) -> bool:
        """Whether this round comes so late that the whole process was held up: then loops get
        one more interval to beat.
        """
        now = self._clock.monotonic()
        late = now - self._looked_at - self.check_interval
        self._looked_at = now
        self._skipped = late > self.check_interval / 2 and not self._skipped
        if self._skipped:
            _briefly(lambda: self._events.emit(WatchSkipped(late=late)))
        return self._skipped

    def _bite(self, stalled: Sequence[tuple[str, float]]) -> None:
        try:
            self._say_last_words([Stall(name, elapsed) for name, elapsed in stalled])
        finally:
            end_process()

    def _say_last_words(self, stalls: Sequence[Stall]) -> None:
        limit = f"(threshold: {self.stall_threshold:.1f}s)"
        words = [f"Watchdog: {name} stalled for {elapsed:.1f}s {limit}" for name, elapsed in stalls]
        self._crash_file.dump("; ".join(words))
        last = [*words, "Watchdog: terminating process due to stalled workers"]
        acts = (
            self._crash_file.show,
            lambda: self._before_kill(stalls),
            lambda: _log_all(last),
            lambda: self._emit(stalls),
        )
        for act in acts:
            _briefly(act)

    def _emit(self, stalls: Sequence[Stall]) -> None:
        for name, elapsed in stalls:
            stacks = str(self._crash_file.path)
            self._events.emit(
                LoopStalled(
                    loop=name, elapsed=elapsed, threshold=self.stall_threshold, stacks=stacks
                )
            )


class _Backstop:
    """The timer in C, if this watchdog has it.

    Around a fork it is off: the child would wait for ever for the end of the timer's thread, which
    it does not have.
    """

    _holder: ClassVar[_Backstop | None] = None
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _knows_of_forks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._file: CrashFile | None = None
        self._seconds = 0.0
        self._due = 0.0

    def arm(self, file: CrashFile, seconds: float) -> None:
        with _Backstop._lock:
            _Backstop._learn_of_forks()
            self._file, self._seconds = file, seconds
            self._due = time.monotonic() + seconds
            self.count()

    def again(self) -> None:
        """Count from now, if that is possible: the watch goes on without it."""
        with _Backstop._lock, suppress(RuntimeError, OSError, ValueError):
            self._due = time.monotonic() + self._seconds
            self.count()

    def disarm(self) -> None:
        with _Backstop._lock:
            self._file = None
            if _Backstop._holder is self:
                faulthandler.cancel_dump_traceback_later()
                _Backstop._holder = None

    def count(self) -> None:
        """Go on counting, if nobody else does."""
        if self._file is not None and _Backstop._holder in {None, self}:
            _Backstop._holder = self
            left = max(self._due - time.monotonic(), 0.001)
            faulthandler.dump_traceback_later(left, exit=True, file=self._file.fileno)

    # --- forks ---

    @classmethod
    def _learn_of_forks(cls) -> None:
        if not cls._knows_of_forks:
            os.register_at_fork(
                before=cls._before_fork,
                after_in_parent=cls._in_parent,
                after_in_child=cls._in_child,
            )
            cls._knows_of_forks = True

    @classmethod
    def _before_fork(cls) -> None:
        cls._lock.acquire()
        if cls._holder is not None:
            faulthandler.cancel_dump_traceback_later()

    @classmethod
    def _in_parent(cls) -> None:
        with suppress(RuntimeError, OSError, ValueError):
            if cls._holder is not None:
                cls._holder.count()
        cls._lock.release()

    @classmethod
    def _in_child(cls) -> None:
        cls._holder, cls._lock = None, threading.RLock()


def _log_all(lines: Sequence[str]) -> None:
    for line in lines:
        _log(logging.CRITICAL, line)


def _log(level: int, line: str, why: BaseException | None = None) -> None:
    logging.getLogger(LOGGER).log(level, line, exc_info=why)


def _briefly(act: Callable[[], object]) -> None:
    """Do it in a thread that is waited for only so long: it may be blocked for ever."""
    errand = Errand(act, name="watchdog-word", loud=True)
    errand.start(here_if_no_thread=True)
    errand.over.block(_BRIEFLY)


def end_process() -> None:
    """The end, at once, whatever other threads do."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(KILLED)


def _require_positive(name: str, seconds: float) -> None:
    if not (isfinite(seconds) and seconds > 0):
        raise UsageError(f"{name} must be a number of seconds above 0, not {seconds}")
