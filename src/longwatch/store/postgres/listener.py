"""Receives NOTIFY in a thread with a connection of its own."""

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
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.database import Channels
from longwatch.store.notify.subscriptions import Subscriptions
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.presence import ListenerPresence
from longwatch.store.postgres.transaction import NOTIFY_CHANNEL, NOTIFY_SQL

WAKE_INTERVAL = 1.0
"""Seconds after which a listener is woken without a notification: behind a pooler that shares
connections none ever comes.
"""
RECONNECT_BACKOFF = BackoffPolicy(initial=0.1, factor=2.0, cap=5.0, jitter=0.25)
SILENT_INTERVALS = 30
"""Intervals without a notification after which the server is probed: a connection that a firewall
has forgotten stays open and silent.
"""
_CONNECT_TIMEOUT = 10.0
_ANSWER_TIMEOUT = 5.0
_CLOSE_TIMEOUT = 2.0


class PostgresListener:
    """Receives notifications from the first `listen` until it is closed.

    A payload is `CLIENT_ID/CHANNEL`, or a message between listeners (`presence`). A payload of this
    process is ignored: its own listeners were woken at the commit. A lost connection is made again
    with a backoff; meanwhile, and every WAKE_INTERVAL seconds in any case, all listeners are woken.
    """

    def __init__(
        self,
        connect: Callable[[float], PostgresConnection],
        *,
        client_id: str,
        wake_interval: float = WAKE_INTERVAL,
    ) -> None:
        self.subscriptions = Subscriptions()
        self.presence = ListenerPresence(client_id)
        self._connect = connect
        self._client_id = client_id
        self._wake_interval = wake_interval
        self._lock = threading.Lock()
        self._thread: BackgroundThread | None = None
        self._stop_reader, self._stop_writer = -1, -1
        self._connection: PostgresConnection | None = None
        self._closed = False

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            unsubscribe = self.subscriptions.add(channels, wakeup)
            if self._thread is None:
                self._start_thread()
        return unsubscribe

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            first, self._closed = not self._closed, True
            thread = self._thread
            if thread is None:
                return
            if first:
                os.write(self._stop_writer, b"\0")
        if not thread.in_own_thread:
            thread.done.block(_CLOSE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child, where the thread never was."""
        if self._thread is not None and not self._thread.done.is_set():
            os.close(self._stop_reader)
            os.close(self._stop_writer)
        if self._connection is not None:
            self._connection.abandon()

    def _start_thread(self) -> None:
        self._stop_reader, self._stop_writer = os.pipe()
        thread = BackgroundThread(self._run, name="longwatch-postgres-listener", report_errors=True)
        try:
            thread.start()
        except RuntimeError as error:
            os.close(self._stop_reader)
            os.close(self._stop_writer)
            raise StoreUnreachableError(f"no thread to listen with ({error}); try again") from error
        self._thread = thread

    # --- the thread ---

    def _run(self) -> None:
        backoff = Backoff(RECONNECT_BACKOFF)
        while not self._closed:
            began = time.monotonic()
            try:
                self._listen_once(backoff)
            except (StoreError, psycopg.Error):
                self._wait_before_reconnect(backoff.failed(lasted=time.monotonic() - began))
        with self._lock:
            os.close(self._stop_reader)
            os.close(self._stop_writer)

    def _listen_once(self, backoff: Backoff) -> None:
        """One connection, from its making to its end."""
        connection = self._connection = self._connect(time.monotonic() + _CONNECT_TIMEOUT)
        try:
            connection.send(NOTIFY_SQL, (self.presence.hello,))
            connection.send(f"LISTEN {NOTIFY_CHANNEL}".encode())
            connection.sync(time.monotonic() + _CONNECT_TIMEOUT)
            backoff.succeeded()
            self.presence.start()
            self.subscriptions.wake_all()  # notifications from before were missed
            payloads = connection.notifications()
            while not self._closed and (
                payloads or self._wait_for_input(connection.fileno, self._wake_interval)
            ):
                self._dispatch(connection, payloads or _read_or_probe(connection))
                payloads = (
                    connection.notifications()
                )  # what came while others were answered, which nobody is woken for again
            connection.send(NOTIFY_SQL, (self.presence.bye,))
            connection.sync_nowait(time.monotonic() + _ANSWER_TIMEOUT)
        finally:
            self.presence.stop()
            self._connection = None
            connection.close()

    def _wait_for_input(self, fileno: int, interval: float) -> bool:
        """Wait until there is something to read or to ask, waking all listeners every WAKE_INTERVAL
        seconds; False when stopped.
        """
        poll = select.poll()
        poll.register(self._stop_reader, select.POLLIN)
        if fileno >= 0:
            poll.register(fileno, select.POLLIN)
        for _ in range(SILENT_INTERVALS if fileno >= 0 else 1):
            if ready := dict(poll.poll(interval * 1000)):
                return self._stop_reader not in ready
            self.subscriptions.wake_all()
        return True

    def _dispatch(self, connection: PostgresConnection, payloads: Sequence[str]) -> None:
        parsed = [payload.partition("/") for payload in payloads]
        answers, greetings = (
            zip(*map(self.presence.receive, payloads), strict=True) if payloads else ((), ())
        )
        self.subscriptions.wake(
            {channel for sender, _, channel in parsed if sender != self._client_id}
        )
        if any(greetings):
            self.subscriptions.wake_all()  # they may have left out notifications until now
        replies = dict.fromkeys(
            [
                *filter(None, answers),
                *([self.presence.hello] if self.presence.should_ping() else []),
            ]
        )
        for reply in replies:
            connection.send(NOTIFY_SQL, (reply,))
        if replies:
            connection.sync(time.monotonic() + _ANSWER_TIMEOUT)

    def _wait_before_reconnect(self, delay: float) -> None:
        while delay > 0 and self._wait_for_input(-1, min(delay, self._wake_interval)):
            delay -= self._wake_interval


def _read_or_probe(connection: PostgresConnection) -> list[str]:
    """The notifications; if there are none, probe the connection."""
    payloads = connection.notifications()
    if not payloads:
        connection.query(b"SELECT 1", (), time.monotonic() + _ANSWER_TIMEOUT)
    return payloads or connection.notifications()
