"""One place per process that hears "stop" and passes it on.

A signal's way: the handler leaves a note (`host.signals`) → a daemon thread reads it → every
callback starts, in the order of registration, each in a daemon thread of its own → the reader goes
on reading, because the second signal escalates. Nothing on this way takes a lock that the main
thread could hold, and nothing waits for the frame that the handler interrupted.
"""

from __future__ import annotations

import os
import signal as signals_of_system
import threading
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import ClassVar

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.host import ShutdownCallbackFailed
from longwatch.errors import UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.signals import SignalStream

Callback = Callable[[], object]

DEFAULT_SIGNALS = (signals_of_system.SIGTERM, signals_of_system.SIGINT)
JOIN_TIMEOUT = 5.0
ESCALATING_SIGNAL = 2
"""The signal that escalates: the second."""


class ShutdownCoordinator:
    """Runs what was registered, once, when the process is told to stop.

    `install()` makes the one that listens to signals. One made directly listens to nothing and is
    triggered by code alone. Everything but `install` and `reset` may be called from any thread.
    """

    _installed: ClassVar[tuple[int, ShutdownCoordinator] | None] = None
    """The pid it belongs to, and the coordinator."""

    def __init__(self, *, events: Events | None = None, debounce_seconds: float = 0.0) -> None:
        self.debounce_seconds = debounce_seconds
        self.signal: int | None = None
        """The signal that triggered the shutdown; None before, and when code did."""
        self._events = events or Events()
        self._callbacks: list[_CallbackThread] = []
        self._started: tuple[_CallbackThread, ...] = ()
        self._triggered = False
        self._once = threading.Lock()
        self.second_signal: int | None = None
        """The signal that escalated it; None before."""
        self._escalation: Callback | None = None
        self._signal_count = 0
        self._last_signal_at = -inf
        self._stream = SignalStream(())
        self._reader: BackgroundThread | None = None

    @classmethod
    def install(
        cls,
        *,
        signals: Iterable[int] = DEFAULT_SIGNALS,
        events: Events | None = None,
        debounce_seconds: float = 0.0,
    ) -> ShutdownCoordinator:
        """The coordinator of this process, listening to these signals; the one there is if it has
        been installed.

        A signal within `debounce_seconds` seconds of the last does not count as insisting: some
        senders say one thing twice (to a process and to its group, from the kernel and from a
        shell).

        The first time from the main thread only: ServiceStateError elsewhere, and nothing is
        changed. A forked child has none until it installs its own.
        """
        wanted = frozenset(signals)
        present = cls.get()
        if present is None:
            present = cls(events=events, debounce_seconds=debounce_seconds)
            present.open(wanted)
            ShutdownCoordinator._installed = (os.getpid(), present)
        elif not wanted <= present.signals:
            raise UsageError(
                "the installed ShutdownCoordinator listens to other signals; reset() it "
                "first, or install it once with all"
            )
        return present

    @classmethod
    def get(cls) -> ShutdownCoordinator | None:
        """The installed coordinator of this process, or None: whether there is one is a fair
        question, not an error.
        """
        pid, present = ShutdownCoordinator._installed or (0, None)
        return present if pid == os.getpid() else None

    @classmethod
    def reset(cls) -> None:
        """Restore the former handlers and forget the installed coordinator, from the main
        thread; running callbacks go on.
        """
        present = cls.get()
        if present is not None:
            present.close()
        ShutdownCoordinator._installed = None

    @property
    def triggered(self) -> bool:
        """Whether the process has been told to stop."""
        return self._triggered

    @property
    def signals(self) -> frozenset[int]:
        """The signals it listens to."""
        return frozenset(self._stream.signals)

    def open(self, signals: Iterable[int]) -> None:
        """Listen to these signals, from the main thread; all of it or nothing. `install` does
        this.
        """
        stream = SignalStream(signals)
        stream.open()
        reader = BackgroundThread(partial(self._listen, stream), name="longwatch-signals")
        try:
            reader.start()
        except BaseException:
            stream.close()
            raise
        self._stream, self._reader = stream, reader

    def close(self) -> None:
        """Listen no more and restore the former handlers, from the main thread. `reset` does
        this.
        """
        self._stream.close()
        if self._reader is not None:
            self._reader.wait(SystemClock(), Deadline.after(JOIN_TIMEOUT, SystemClock()))

    def register(self, callback: Callback) -> None:
        """Have `callback` run on shutdown; what is registered already stays registered once.

        After the trigger it starts at once, in a thread of its own, and `register` does not wait
        for it.
        """
        if any(call.callback == callback for call in tuple(self._callbacks)):
            return
        call = _CallbackThread(callback, self._events)
        # The call is listed before the flag is read, `_start_callbacks` sets the flag before it
        # reads the list, and a call starts once: so none is missed and none runs twice, without a
        # lock that a signal handler could find taken.
        self._callbacks.append(call)
        if self._triggered:
            call.start(inline_fallback=True)

    def unregister(self, callback: Callback) -> None:
        """Take a callback off; nothing if it is not there. Does not wait for one that runs."""
        for call in tuple(self._callbacks):
            if call.callback == callback:
                self._callbacks.remove(call)

    def on_escalation(self, callback: Callback | None) -> None:
        """What the second signal does (in a thread of its own) instead of ending the process with
        128 + n at once.

        The process still ends so if the callback raises, and with the third signal.
        """
        self._escalation = callback

    def trigger(self, signum: int | None = None) -> None:
        """Start every callback and return when all have returned; a later call only waits.

        From inside a callback it returns at once, because a callback cannot wait for itself. Not
        for signal handlers: it waits.
        """
        self._start_callbacks(signum)
        calls = (
            *self._started,
            *self._callbacks,
        )  # a callback that takes itself off while it runs is waited for all the same
        if not any(call.in_own_thread for call in calls):
            for call in calls:
                call.wait(SystemClock(), Deadline.after(None, SystemClock()))

    def _start_callbacks(self, signum: int | None) -> None:
        if self._once.acquire(blocking=False):
            self.signal = signum
            self._triggered = True
            self._started = tuple(self._callbacks)
            for call in self._started:
                call.start(inline_fallback=True)

    def _listen(self, stream: SignalStream) -> None:
        for signum in stream:
            now = SystemClock().monotonic()
            if now - self._last_signal_at < self.debounce_seconds:
                continue  # the same request once more, not a second one
            self._last_signal_at = now
            self._signal_count += 1
            self._handle_signal(signum)

    def _handle_signal(self, signum: int) -> None:
        """The first signal triggers, the second escalates, the third ends it."""
        if self._signal_count == 1:
            self._start_callbacks(signum)
        elif self._signal_count == ESCALATING_SIGNAL and self._escalation is not None:
            self.second_signal = signum
            BackgroundThread(partial(self._escalate, signum), name="longwatch-escalation").start(
                inline_fallback=True
            )
        else:
            os._exit(128 + signum)

    def _escalate(self, signum: int) -> None:
        assert self._escalation is not None
        call = _CallbackThread(self._escalation, self._events)
        call.run_callback()
        if call.failed:
            os._exit(128 + signum)


class _CallbackThread(BackgroundThread):
    """A callback with a guard around it."""

    def __init__(self, callback: Callback, events: Events) -> None:
        self.callback = callback
        self.failed = False
        self._events = events
        super().__init__(self.run_callback, name=f"longwatch-shutdown-{_callback_name(callback)}")

    def run_callback(self) -> None:
        try:
            self.callback()
        except BaseException as error:  # noqa: BLE001 - one that raises, even SystemExit, must not hinder the others
            self.failed = True
            self._events.emit(
                ShutdownCallbackFailed(
                    callback=_callback_name(self.callback), error=describe_error(error)
                )
            )


def _callback_name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
