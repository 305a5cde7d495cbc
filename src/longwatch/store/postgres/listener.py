"""Receives NOTIFY on a dedicated connection.

A payload is `CLIENT/CHANNEL`, or a control message between listeners (`presence`). Payloads of this
process are skipped, because it has already woken its own subscriptions. Behind a pooler that lends
connections for one transaction there is no connection to listen on. Then only the wake interval
wakes receivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import psycopg

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreError
from longwatch.store.notify.listener import (
    WAKE_INTERVAL,
    ChannelsToWake,
    NotificationListener,
    Received,
    WakePipe,
    warn_of_polling,
)
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.presence import ListenerPresence
from longwatch.store.postgres.transaction import NOTIFY_CHANNEL, NOTIFY_SQL

SILENT_INTERVALS = 30
"""Wake intervals without a notification after which the server has to reply to a query. A
connection that a firewall has forgotten stays open and silent.
"""
_CONNECT_TIMEOUT = 10.0
_ANSWER_TIMEOUT = 5.0


class PostgresListener(NotificationListener):
    """Receives NOTIFY and announces this process to its peers."""

    thread_name = "longwatch-postgres-listener"
    connection_errors = (StoreError, psycopg.Error)

    def __init__(
        self,
        connect: Callable[[Deadline], PostgresConnection | None],
        *,
        client_id: str,
        wake_interval: float = WAKE_INTERVAL,
    ) -> None:
        super().__init__(wake_interval=wake_interval)
        self.presence = ListenerPresence(client_id)
        self._connect = connect
        self._client_id = client_id

    def connect(self) -> ListeningConnection | PollingOnly:
        connection = self._connect(_after(_CONNECT_TIMEOUT))
        if connection is None:
            warn_of_polling(
                "the store's URL leads through a pooler; add listen_url= with the server's own URL"
            )
            return PollingOnly()
        return ListeningConnection(connection, self.presence, self._client_id)


class PollingOnly:
    """Takes the place of a connection where none may listen: nothing is ever received."""

    is_polling_only = True

    def __init__(self) -> None:
        self._pipe = WakePipe()
        self.fileno = self._pipe.fileno

    def start(self) -> Iterable[ChannelsToWake]:
        """Wake every channel: earlier notifications were missed."""
        yield None

    def subscribe(self, channels: set[str]) -> None:
        """Does nothing."""

    def receive(self) -> Received:
        return Received()

    def check_alive(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        self._pipe.close()

    def abandon(self) -> None:
        self._pipe.abandon()


class ListeningConnection:
    """A connection that LISTENs, from its `hello` to its `bye`."""

    is_polling_only = False

    def __init__(
        self, connection: PostgresConnection, presence: ListenerPresence, client_id: str
    ) -> None:
        self.fileno = connection.fileno
        self._connection = connection
        self._presence = presence
        self._client_id = client_id
        self._silent_intervals = 0

    def start(self) -> Iterable[ChannelsToWake]:
        """Send `hello` and LISTEN. Wakes every channel, because earlier notifications were
        missed.
        """
        self._connection.send(NOTIFY_SQL, (self._presence.hello,))
        self._connection.send(f"LISTEN {NOTIFY_CHANNEL}".encode())
        self._connection.sync(_after(_CONNECT_TIMEOUT))
        self._presence.start()
        yield None
        yield self._receive()

    def subscribe(self, channels: set[str]) -> None:
        """Does nothing: every payload comes over the server's one channel."""

    def receive(self) -> Received:
        return Received(self._receive())

    def _receive(self) -> ChannelsToWake:
        """Dispatch the payloads that have arrived, and those that arrive while replies are sent.
        The latter do not make the socket readable again.
        """
        self._silent_intervals = 0
        payloads = self._connection.notifications()
        channels = self._dispatch(payloads)
        while payloads := self._connection.notifications():
            more = self._dispatch(payloads)
            channels = None if channels is None or more is None else channels | more
        return channels

    def check_alive(self) -> None:
        self._silent_intervals += 1
        if self._silent_intervals >= SILENT_INTERVALS:
            self._connection.query(b"SELECT 1", (), _after(_ANSWER_TIMEOUT))
            self._receive()

    def close(self) -> None:
        self._presence.stop()
        with suppress(StoreError, psycopg.Error):
            self._connection.send(NOTIFY_SQL, (self._presence.bye,))
            self._connection.sync_nowait(_after(_ANSWER_TIMEOUT))
        self._connection.close()

    def abandon(self) -> None:
        self._connection.abandon()

    def _dispatch(self, payloads: Sequence[str]) -> set[str] | None:
        """Reply to control messages, and return the channels to wake.

        Returns None, all channels, when a peer announces that it notifies this process from now on:
        its earlier commits were not notified.
        """
        received = [self._presence.receive(payload) for payload in payloads]
        replies = dict.fromkeys(reply for reply, _ in received if reply)
        if self._presence.should_ping():
            replies[self._presence.hello] = None
        for reply in replies:
            self._connection.send(NOTIFY_SQL, (reply,))
        if replies:
            self._connection.sync(_after(_ANSWER_TIMEOUT))
        if any(is_greeting for _, is_greeting in received):
            return None
        parts = [payload.partition("/") for payload in payloads]
        return {channel for sender, _, channel in parts if sender != self._client_id}


def _after(seconds: float) -> Deadline:
    return Deadline.after(seconds, SystemClock())
