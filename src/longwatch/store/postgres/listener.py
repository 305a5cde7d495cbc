"""Receives NOTIFY on a dedicated connection (`notify_payload`).

Processes do not know of each other: a listener sends nothing, and a process that commits notifies
whether others listen or not. Behind a pooler that lends connections for one transaction there is no
connection to listen on. Then only the wake interval wakes receivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
from longwatch.store.postgres.notify_payload import decode_payloads
from longwatch.store.postgres.transaction import NOTIFY_CHANNEL

SILENT_INTERVALS = 30
"""Wake intervals without a notification after which the server has to reply to a query. A
connection that a firewall has forgotten stays open and silent.
"""
_CONNECT_TIMEOUT = 10.0
_ANSWER_TIMEOUT = 5.0


class PostgresListener(NotificationListener):
    """Receives the NOTIFYs of other processes."""

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
        self._connect = connect
        self._client_id = client_id

    def connect(self) -> ListeningConnection | PollingOnly:
        connection = self._connect(_after(_CONNECT_TIMEOUT))
        if connection is None:
            warn_of_polling(
                "the store's URL leads through a pooler; add listen_url= with the server's own URL"
            )
            return PollingOnly()
        return ListeningConnection(connection, self._client_id)


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

    def check_alive(self) -> Received:
        """Does nothing."""
        return Received()

    def close(self) -> None:
        self._pipe.close()

    def abandon(self) -> None:
        self._pipe.abandon()


class ListeningConnection:
    """A connection that LISTENs."""

    is_polling_only = False

    def __init__(self, connection: PostgresConnection, client_id: str) -> None:
        self.fileno = connection.fileno
        self._connection = connection
        self._client_id = client_id
        self._silent_intervals = 0

    def start(self) -> Iterable[ChannelsToWake]:
        """LISTEN. Wakes every channel, because earlier notifications were missed."""
        self._connection.send(f"LISTEN {NOTIFY_CHANNEL}".encode())
        self._connection.sync(_after(_CONNECT_TIMEOUT))
        yield None

    def subscribe(self, channels: set[str]) -> None:
        """Does nothing: every payload comes over the server's one channel."""

    def receive(self) -> Received:
        self._silent_intervals = 0
        return decode_payloads(self._client_id, self._connection.notifications())

    def check_alive(self) -> Received:
        """Query a server that was silent for long. Returns what came with the reply, which does not
        make the socket readable again.
        """
        self._silent_intervals += 1
        if self._silent_intervals < SILENT_INTERVALS:
            return Received()
        self._connection.query(b"SELECT 1", (), _after(_ANSWER_TIMEOUT))
        return self.receive()

    def close(self) -> None:
        self._connection.close()

    def abandon(self) -> None:
        self._connection.abandon()


def _after(seconds: float) -> Deadline:
    return Deadline.after(seconds, SystemClock())
