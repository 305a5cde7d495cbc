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
from longwatch.core.events import CallbackFailed, Events
from longwatch.errors import UsageError
from longwatch.host.errand import Errand
from longwatch.host.signals import SignalStream

Callback = Callable[[], object]

SIGNALS = (signals_of_system.SIGTERM, signals_of_system.SIGINT)
JOIN_PATIENCE = 5.0
INSISTING = 2
"""The signal that escalates: the second."""


class ShutdownCoordinator:
    """Runs what was registered, once, when the process is told to stop.

    `install()` makes the one that listens to signals. One made directly listens to nothing and is
    triggered by code alone. Everything but `install` and `reset` may be called from any thread.
    """

    _installed: ClassVar[tuple[int, ShutdownCoordinator] | None] = None
    """The pid it belongs to, and the coordinator."""

    def __init__(self, *, events: Events | None = None, insist_after: float = 0.0) -> None:
        self.insist_after = insist_after
        self.signal: int | None = None
        """The signal that triggered the shutdown; None before, and when code did."""
        self._events = events or Events()
        self._calls: list[_Call] = []
        self._begun: tuple[_Call, ...] = ()
        self._triggered = False
        self._once = threading.Lock()
        self.second_signal: int | None = None
        """The signal that escalated it; None before."""
        self._escalation: Callback | None = None
        self._heard = 0
        self._heard_at = -inf
        self._stream = SignalStream(())
        self._reader: Errand | None = None

    @classmethod
    def install(
        cls,
        *,
        signals: Iterable[int] = SIGNALS,
        events: Events | None = None,
        insist_after: float = 0.0,
    ) -> ShutdownCoordinator:
        """The coordinator of this process, listening to these signals; the one there is if it has
        been installed.

        A signal within `insist_after` seconds of the last does not count as insisting: some senders
        say one thing twice (to a process and to its group, from the kernel and from a shell).

        The first time from the main thread only: ServiceStateError elsewhere, and nothing is
        changed. A forked child has none until it installs its own.
        """
        wanted = frozenset(signals)
        present = cls.get()
        if present is None:
            present = cls(events=events, insist_after=insist_after)
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
        reader = Errand(partial(self._listen, stream), name="longwatch-signals")
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
            self._reader.wait(SystemClock(), Deadline.after(JOIN_PATIENCE, SystemClock()))

    def register(self, callback: Callback) -> None:
        """Have `callback` run on shutdown; what is registered already stays registered once.

        After the trigger it starts at once, in a thread of its own, and `register` does not wait
        for it.
        """
        if any(call.callback == callback for call in tuple(self._calls)):
            return
        call = _Call(callback, self._events)
        # The call is listed before the flag is read, `_begin` sets the flag before it reads the
        # list, and a call starts once: so none is missed and none runs twice, without a lock that a
        # signal handler could find taken.
        self._calls.append(call)
        if self._triggered:
            call.start(here_if_no_thread=True)

    def unregister(self, callback: Callback) -> None:
        """Take a callback off; nothing if it is not there. Does not wait for one that runs."""
        for call in tuple(self._calls):
            if call.callback == callback:
                self._calls.remove(call)

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
        self._begin(signum)
        calls = (
            *self._begun,
            *self._calls,
        )  # a callback that takes itself off while it runs is waited for all the same
        if not any(call.inside for call in calls):
            for call in calls:
                call.wait(SystemClock(), Deadline.after(None, SystemClock()))

    def _begin(self, signum: int | None) -> None:
        if self._once.acquire(blocking=False):
            self.signal = signum
            self._triggered = True
            self._begun = tuple(self._calls)
            for call in self._begun:
                call.start(here_if_no_thread=True)

    def _listen(self, stream: SignalStream) -> None:
        for signum in stream:
            now = SystemClock().monotonic()
            if now - self._heard_at < self.insist_after:
                continue  # the same request once more, not a second one
            self._heard_at = now
            self._heard += 1
            self._hear(signum)

    def _hear(self, signum: int) -> None:
        """The first signal triggers, the second escalates, the third ends it."""
        if self._heard == 1:
            self._begin(signum)
        elif self._heard == INSISTING and self._escalation is not None:
            self.second_signal = signum
            Errand(partial(self._escalate, signum), name="longwatch-escalation").start(
                here_if_no_thread=True
            )
        else:
            os._exit(128 + signum)

    def _escalate(self, signum: int) -> None:
        assert self._escalation is not None
        call = _Call(self._escalation, self._events)
        call.make()
        if call.failed:
            os._exit(128 + signum)


class _Call(Errand):
    """A callback with a guard around it."""

    def __init__(self, callback: Callback, events: Events) -> None:
        self.callback = callback
        self.failed = False
        self._events = events
        super().__init__(self.make, name=f"longwatch-shutdown-{_spoken(callback)}")

    def make(self) -> None:
        try:
            self.callback()
        except BaseException as error:  # noqa: BLE001 - one that raises, even SystemExit, must not hinder the others
            self.failed = True
            self._events.emit(
                CallbackFailed(
                    callback=_spoken(self.callback), error=f"{type(error).__name__}: {error}"
                )
            )


def _spoken(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
