"""The thread that hears what the server announces, on a connection of its own."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

import psycopg

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError, StoreError, StoreUnreachableError
from longwatch.host.errand import Errand
from longwatch.store.database import Channels
from longwatch.store.listeners import Listeners
from longwatch.store.postgres_presence import Presence
from longwatch.store.postgres_transaction import CHANNEL, NOTIFY
from longwatch.store.postgres_wire import Wire

NET = 1.0
"""Seconds after which a listener is woken though no hint came: behind a pooler that shares
connections none ever comes.
"""
RECONNECT = BackoffPolicy(initial=0.1, factor=2.0, cap=5.0, jitter=0.25)
SILENT_TIMES = 30
"""How often in a row listeners are woken without a hint until the server is asked whether it is
still there: a connection that something between has forgotten stays open, and silent.
"""
_CONNECT_WITHIN = 10.0
_ANSWER_WITHIN = 5.0
_PATIENCE = 2.0


class Ear:
    """Hears announcements from when somebody first listens until it is closed.

    A payload is `WHO/CHANNEL`, or a word between ears (`postgres_presence`); what this process said
    itself it has told its own listeners already. A lost connection is made again, less and less
    often while that fails; meanwhile, and in any case every NET seconds, all listeners are woken.
    """

    def __init__(self, connect: Callable[[float], Wire], *, who: str, net: float = NET) -> None:
        self.listeners = Listeners()
        self.presence = Presence(who)
        self._connect = connect
        self._who = who
        self._net = net
        self._lock = threading.Lock()
        self._errand: Errand | None = None
        self._stop, self._stopper = -1, -1
        self._wire: Wire | None = None
        self._closed = False

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            leave = self.listeners.add(channels, wakeup)
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
        with self._lock:
            os.close(self._stop)
            os.close(self._stopper)

    def _hear_out(self, backoff: Backoff) -> None:
        """One connection, from its making to its end."""
        wire = self._wire = self._connect(time.monotonic() + _CONNECT_WITHIN)
        try:
            wire.send(NOTIFY, (self.presence.hello,))
            wire.send(f"LISTEN {CHANNEL}".encode())
            wire.answer(time.monotonic() + _CONNECT_WITHIN)
            backoff.succeeded()
            self.presence.begin()
            self.listeners.wake_all()  # what was announced before went unheard
            said = wire.notifications()
            while not self._closed and (said or self._await(wire.fileno, self._net)):
                self._dispatch(wire, said or _said(wire))
                said = (
                    wire.notifications()
                )  # what came while others were answered, which nobody is woken for again
            wire.send(NOTIFY, (self.presence.bye,))
            wire.leave(time.monotonic() + _ANSWER_WITHIN)
        finally:
            self.presence.end()
            self._wire = None
            wire.close()

    def _await(self, fileno: int, patience: float) -> bool:
        """Wait until there is something to hear or to ask, waking everybody every NET seconds;
        False when told to stop.
        """
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if fileno >= 0:
            poll.register(fileno, select.POLLIN)
        for _ in range(SILENT_TIMES if fileno >= 0 else 1):
            if ready := dict(poll.poll(patience * 1000)):
                return self._stop not in ready
            self.listeners.wake_all()
        return True

    def _dispatch(self, wire: Wire, payloads: Sequence[str]) -> None:
        heard = [payload.partition("/") for payload in payloads]
        answers, tells = (
            zip(*map(self.presence.hear, payloads), strict=True) if payloads else ((), ())
        )
        self.listeners.wake({channel for who, _, channel in heard if who != self._who})
        if any(tells):
            self.listeners.wake_all()  # what they had left untold
        words = dict.fromkeys(
            [*filter(None, answers), *([self.presence.hello] if self.presence.asks() else [])]
        )
        for word in words:
            wire.send(NOTIFY, (word,))
        if words:
            wire.answer(time.monotonic() + _ANSWER_WITHIN)

    def _sit_out(self, delay: float) -> None:
        while delay > 0 and self._await(-1, min(delay, self._net)):
            delay -= self._net


def _said(wire: Wire) -> list[str]:
    """What was announced. If nothing was, it has to prove that it would have been heard."""
    said = wire.notifications()
    if not said:
        wire.ask(b"SELECT 1", (), time.monotonic() + _ANSWER_WITHIN)
    return said or wire.notifications()
