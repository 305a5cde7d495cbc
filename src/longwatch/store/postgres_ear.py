"""Those of this process who wait for a hint, and the thread that hears the server on a connection of its own."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable

import psycopg

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError, StoreError, StoreUnreachableError
from longwatch.host.errand import Errand
from longwatch.store.postgres_transaction import CHANNEL
from longwatch.store.postgres_wire import Wire

NET = 1.0
"""Seconds after which a listener is woken though no hint came: behind a pooler that shares connections none ever comes."""
RECONNECT = BackoffPolicy(initial=0.1, factor=2.0, cap=5.0, jitter=0.25)
_CONNECT_WITHIN = 10.0
_PATIENCE = 2.0


class Listeners:
    """Who is to be woken for which channel. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._wakeups: dict[str, set[Wakeup]] = {}
        self._lock = threading.Lock()

    def add(self, channel: str, wakeup: Wakeup) -> Callable[[], None]:
        """Returns what takes it off again."""
        with self._lock:
            self._wakeups.setdefault(channel, set()).add(wakeup)
        return lambda: self._remove(channel, wakeup)

    def wake(self, channels: Iterable[str]) -> None:
        if not self._wakeups:
            return
        with self._lock:
            found = [wakeup for channel in channels for wakeup in self._wakeups.get(channel, ())]
        for wakeup in found:
            wakeup.set()

    def wake_all(self) -> None:
        self.wake(tuple(self._wakeups))

    def _remove(self, channel: str, wakeup: Wakeup) -> None:
        with self._lock:
            waiting = self._wakeups.get(channel, set())
            waiting.discard(wakeup)
            if not waiting:
                self._wakeups.pop(channel, None)


class Ear:
    """Hears announcements from when somebody first listens until it is closed.

    A payload is `WHO/CHANNEL`; what this process said itself it has told its own listeners already. A lost connection is made
    again, less and less often while that fails; meanwhile, and in any case every NET seconds, all listeners are woken.
    """

    def __init__(self, connect: Callable[[float], Wire], *, who: str, net: float = NET) -> None:
        self.listeners = Listeners()
        self._connect = connect
        self._who = who
        self._net = net
        self._lock = threading.Lock()
        self._errand: Errand | None = None
        self._stop, self._stopper = -1, -1
        self._wire: Wire | None = None
        self._closed = False

    def listen(self, channel: str, wakeup: Wakeup) -> Callable[[], None]:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            leave = self.listeners.add(channel, wakeup)
            if self._errand is None:
                self._begin()
        return leave

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            first, self._closed = not self._closed, True
            errand = self._errand
        if errand is None:
            return
        if first:
            os.write(self._stopper, b"\0")
        if not errand.inside:
            errand.over.block(_PATIENCE)

    def leave_behind(self) -> None:
        """In a forked child, where the thread never was."""
        if self._errand is not None and not self._errand.over.is_set():
            os.close(self._stop)
            os.close(self._stopper)
        if self._wire is not None:
            self._wire.leave_behind()

    def _begin(self) -> None:
        self._stop, self._stopper = os.pipe()
        errand = Errand(self._work, name="longwatch-postgres-ear", loud=True)
        try:
            errand.start()
        except RuntimeError as error:
            os.close(self._stop)
            os.close(self._stopper)
            raise StoreUnreachableError(f"no thread to listen with ({error}); try again") from error
        self._errand = errand

    # --- the thread ---

    def _work(self) -> None:
        backoff = Backoff(RECONNECT)
        while not self._closed:
            began = time.monotonic()
            try:
                self._hear_out(backoff)
            except (StoreError, psycopg.Error):
                self._sit_out(backoff.failed(lasted=time.monotonic() - began))
        os.close(self._stop)
        os.close(self._stopper)

    def _hear_out(self, backoff: Backoff) -> None:
        """One connection, from its making to its end."""
        wire = self._wire = self._connect(time.monotonic() + _CONNECT_WITHIN)
        try:
            wire.ask(f"LISTEN {CHANNEL}".encode(), (), time.monotonic() + _CONNECT_WITHIN)
            backoff.succeeded()
            self.listeners.wake_all()  # what was announced before went unheard
            while self._await(wire.fileno, self._net):
                self._dispatch(wire.notifications())
        finally:
            self._wire = None
            wire.close()

    def _await(self, fileno: int, patience: float) -> bool:
        """Wait until there is something to hear, waking everybody every NET seconds; False when told to stop."""
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if fileno >= 0:
            poll.register(fileno, select.POLLIN)
        while not (ready := dict(poll.poll(patience * 1000))):
            self.listeners.wake_all()
            if fileno < 0:
                return True
        return self._stop not in ready

    def _dispatch(self, payloads: Iterable[str]) -> None:
        heard = (payload.partition("/") for payload in payloads)
        self.listeners.wake({channel for who, _, channel in heard if who != self._who})

    def _sit_out(self, delay: float) -> None:
        while delay > 0 and self._await(-1, min(delay, self._net)):
            delay -= self._net
