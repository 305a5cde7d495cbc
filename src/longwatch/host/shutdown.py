"""Coordinates the shutdown of a process: receives stop signals and runs the registered callbacks.

The path of a signal: the handler queues it (`host.signals`) → a daemon thread reads it → every
callback starts, in the order of registration, each in a daemon thread of its own. The reader
continues, because the second signal escalates. No step takes a lock that the main thread could
hold, and none waits for the frame that the handler interrupted.
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
"""The number of the signal that escalates: the second one."""


class ShutdownCoordinator:
    """Runs the registered callbacks, once, when the process is asked to stop.

    `install()` makes the coordinator that catches signals. A coordinator made directly catches
    none, and only code triggers it. Everything but `install` and `reset` is thread-safe.
    """

    _installed: ClassVar[tuple[int, ShutdownCoordinator] | None] = None
    """The pid of the process that installed it, and the coordinator."""

    def __init__(self, *, events: Events | None = None, debounce_seconds: float = 0.0) -> None:
        self.debounce_seconds = debounce_seconds
        self.signal: int | None = None
        """The signal that triggered the shutdown; None before that, and if code triggered it."""
        self._events = events or Events()
        self._callbacks: list[_CallbackThread] = []
        self._started: tuple[_CallbackThread, ...] = ()
        self._triggered = False
        self._once = threading.Lock()
        self.second_signal: int | None = None
        """The signal that escalated the shutdown; None before that."""
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
        """Return the coordinator of this process; make one that catches these signals if there is
        none.

        A signal within `debounce_seconds` of the last one does not escalate. Some senders send one
        request twice: to a process and to its group, or from the kernel and from a shell.

        The first call must be on the main thread. Elsewhere it raises ServiceStateError and changes
        nothing. A forked child has no coordinator until it installs its own.
        """
        wanted = frozenset(signals)
        present = cls.get()
        if present is None:
            present = cls(events=events, debounce_seconds=debounce_seconds)
            present.open(wanted)
            ShutdownCoordinator._installed = (os.getpid(), present)
        elif not wanted <= present.signals:
            raise UsageError(
                "the installed ShutdownCoordinator catches other signals; reset() it "
                "first, or install it once with all signals"
            )
        return present

    @classmethod
    def get(cls) -> ShutdownCoordinator | None:
        """Return the installed coordinator of this process, or None."""
        pid, present = ShutdownCoordinator._installed or (0, None)
        return present if pid == os.getpid() else None

    @classmethod
    def reset(cls) -> None:
        """Restore the former handlers and forget the installed coordinator.

        For the main thread only. Running callbacks continue.
        """
        present = cls.get()
        if present is not None:
            present.close()
        ShutdownCoordinator._installed = None

    @property
    def triggered(self) -> bool:
        """Whether the process was asked to stop."""
        return self._triggered

    @property
    def signals(self) -> frozenset[int]:
        """The signals it catches."""
        return frozenset(self._stream.signals)

    def open(self, signals: Iterable[int]) -> None:
        """Catch these signals, all or none, on the main thread. `install` calls this."""
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
        """Restore the former handlers, on the main thread. `reset` calls this."""
        self._stream.close()
        if self._reader is not None:
            self._reader.wait(SystemClock(), Deadline.after(JOIN_TIMEOUT, SystemClock()))

    def register(self, callback: Callback) -> None:
        """Run `callback` on shutdown; does nothing if it is already registered.

        After the trigger it starts at once, in a thread of its own, and `register` does not wait
        for it.
        """
        if any(call.callback == callback for call in tuple(self._callbacks)):
            return
        call = _CallbackThread(callback, self._events)
        # The call is listed before the flag is read. `_start_callbacks` sets the flag before it
        # reads the list. A call starts once. So none is missed and none runs twice, without a lock
        # that a signal handler could find taken.
        self._callbacks.append(call)
        if self._triggered:
            call.start(inline_fallback=True)

    def unregister(self, callback: Callback) -> None:
        """Remove a callback, if it is registered. Does not wait for one that runs."""
        for call in tuple(self._callbacks):
            if call.callback == callback:
                self._callbacks.remove(call)

    def on_escalation(self, callback: Callback | None) -> None:
        """Set what the second signal does, in a thread of its own; None: exit with 128 + n at once.

        The process also exits with 128 + n if the callback raises, and at the third signal.
        """
        self._escalation = callback

    def trigger(self, signum: int | None = None) -> None:
        """Start every callback and wait until all have returned; a later call only waits.

        From inside a callback it returns at once, because a callback cannot wait for itself.
        Blocks, so it is not for signal handlers.
        """
        self._start_callbacks(signum)
        calls = (
            *self._started,
            *self._callbacks,
        )  # also waits for a callback that unregisters itself while it runs
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
                continue  # the same request again, not a second one
            self._last_signal_at = now
            self._signal_count += 1
            self._handle_signal(signum)

    def _handle_signal(self, signum: int) -> None:
        """Trigger at the first signal, escalate at the second, exit at the third."""
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
    """A callback in its thread; errors are emitted as ShutdownCallbackFailed."""

    def __init__(self, callback: Callback, events: Events) -> None:
        self.callback = callback
        self.failed = False
        self._events = events
        super().__init__(self.run_callback, name=f"longwatch-shutdown-{_callback_name(callback)}")

    def run_callback(self) -> None:
        try:
            self.callback()
        except BaseException as error:  # noqa: BLE001 - an error, even SystemExit, must not stop the other callbacks
            self.failed = True
            self._events.emit(
                ShutdownCallbackFailed(
                    callback=_callback_name(self.callback), error=describe_error(error)
                )
            )


def _callback_name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
