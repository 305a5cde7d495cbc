"""Receives the notifications that scripts publish, on a connection that subscribes to mailboxes.

A mailbox stays subscribed for a while after its last receiver has stopped listening, because a
receiver in a loop listens again each time. The reply to SUBSCRIBE wakes the receivers of that
mailbox, because earlier notifications were not received.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from redis import exceptions as redis

from longwatch.mailbox.redis.transport import PING_AFTER_IDLE, close_after_fork
from longwatch.store.notify.listener import (
    WAKE_INTERVAL,
    ChannelsToWake,
    NotificationListener,
    Received,
)

_FOR_ALL = b"all"
"""The message that no receiver may ignore (lua/keys.lua)."""


class RedisListener(NotificationListener):
    """Receives the notifications of the mailboxes of one server."""

    thread_name = "longwatch-redis-listener"
    connection_errors = (redis.RedisError, OSError)
    linger = 60.0

    def __init__(self, connect: Callable[[], Any], *, wake_interval: float = WAKE_INTERVAL) -> None:
        super().__init__(wake_interval=wake_interval)
        self._connect = connect

    def connect(self) -> SubscriberConnection:
        return SubscriberConnection(self._connect())


class SubscriberConnection:
    """A connection of redis-py that is subscribed to channels."""

    is_polling_only = False

    def __init__(self, connection: Any) -> None:
        self.fileno: int = connection._sock.fileno()  # noqa: SLF001 - redis-py has no public name for its socket
        self._connection = connection
        self._channels: set[str] = set()
        self._received_at = time.monotonic()

    def start(self) -> Iterable[ChannelsToWake]:
        """Return nothing: the replies to SUBSCRIBE wake the receivers."""
        return ()

    def subscribe(self, channels: set[str]) -> None:
        if new := channels - self._channels:
            self._connection.send_command("SUBSCRIBE", *new, check_health=False)
        if old := self._channels - channels:
            self._connection.send_command("UNSUBSCRIBE", *old, check_health=False)
        self._channels = channels

    def receive(self) -> Received:
        """Read all messages that have arrived, and return their channels. Bytes that are buffered
        in the parser or in TLS do not make the socket readable, so they are read now.
        """
        messages = [self._connection.read_response()]
        while self._connection.can_read(timeout=0):
            messages.append(self._connection.read_response())
        self._received_at = time.monotonic()
        hints = [message for message in messages if message[-1] != _FOR_ALL]
        asked = [message for message in messages if message[-1] == _FOR_ALL]
        return Received(
            _channels(hints, b"message"),
            missed=_channels(messages, b"subscribe") | _channels(asked, b"message"),
        )

    def check_alive(self) -> Received:
        """Send a PING on a silent connection. Raises ConnectionError when no reply has come."""
        silent = time.monotonic() - self._received_at
        if silent > 2 * PING_AFTER_IDLE:
            raise redis.ConnectionError("no reply to a PING")
        if silent > PING_AFTER_IDLE and self._channels:
            self._connection.send_command("PING", check_health=False)
        return Received()

    def close(self) -> None:
        self._connection.disconnect()

    def abandon(self) -> None:
        close_after_fork(self._connection)


def _channels(messages: Iterable[Any], kind: bytes) -> set[str]:
    """Return the channels of the messages of one kind."""
    return {message[1].decode() for message in messages if message[0] == kind}
