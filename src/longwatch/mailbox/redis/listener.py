"""Receives the notifications that scripts publish, and wakes the listeners of this process.

One thread for each process and store, started by the first listener, with a connection of its own.
It does nothing but wait; when the server is gone, it reconnects with a backoff. A mailbox stays
subscribed for a while after its last listener left, because a receive loop listens anew each time.
A new subscription wakes its listeners too: notifications from before it were missed.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any

from redis import exceptions as redis

from longwatch.core.backoff import Backoff
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError, StoreUnreachableError
from longwatch.host.background_thread import BackgroundThread
from longwatch.mailbox.redis.client import RETRY_BACKOFF
from longwatch.mailbox.redis.transport import PING_AFTER_IDLE, RespReader, close_after_fork

WAKE_INTERVAL = 1.0
"""Seconds after which a listener is woken without a notification."""
_UNSUBSCRIBE_AFTER = 60.0
"""Seconds without a listener after which a mailbox is unsubscribed."""
_CLOSE_TIMEOUT = 2.0


class RedisListener:
    """Listens for the mailboxes of one server. Every method may be called from any thread."""

    def __init__(self, connect: Callable[[], Any], *, wake_interval: float = WAKE_INTERVAL) -> None:
        self._connect = connect
        self._wake_interval = wake_interval
        self._lock = threading.Lock()
        self._listeners: dict[bytes, set[Wakeup]] = {}
        self._left_at: dict[bytes, float] = {}
        self._wake_pipe: WakePipe | None = None
        self._thread: BackgroundThread | None = None
        self._subscriber: SubscriberConnection | None = None
        self._closing = False

    def listen(self, channel: str, wakeup: Wakeup) -> Callable[[], None]:
        """Set the wakeup on every notification, and every WAKE_INTERVAL seconds in any case."""
        name = channel.encode()
        with self._lock:
            if self._closing:
                raise StoreClosedError("the store was closed; open it again")
            wake_pipe = self._wake_pipe or self._start_thread()
            is_new = name not in self._listeners
            self._listeners.setdefault(name, set()).add(wakeup)
            self._left_at.pop(name, None)
        if is_new:
            wake_pipe.wake()
        return lambda: self._stop_listening(name, wakeup)

    def close(self) -> None:
        """End the thread and wait for that, unless it is the calling thread; idempotent."""
        with self._lock:
            self._closing = True
            wake_pipe, thread = self._wake_pipe, self._thread
        if wake_pipe is not None and thread is not None:
            wake_pipe.wake()
            if not thread.in_own_thread:
                thread.done.block(_CLOSE_TIMEOUT)

    def close_after_fork(self) -> None:
        """In a forked child, where the thread is not: close its copies of what the parent has
        open, without a lock.
        """
        if self._wake_pipe is not None:
            self._wake_pipe.close_after_fork()
        if self._subscriber is not None:
            self._subscriber.close_after_fork()

    def _start_thread(self) -> WakePipe:
        self._wake_pipe = WakePipe()
        self._thread = BackgroundThread(
            self._run, name="longwatch-redis-listener", report_errors=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self._wake_pipe.close()
            self._wake_pipe = None
            raise StoreUnreachableError(f"no thread to listen with ({error}); try again") from error
        return self._wake_pipe

    def _stop_listening(self, channel: bytes, wakeup: Wakeup) -> None:
        with self._lock:
            listening = self._listeners.get(channel, set())
            listening.discard(wakeup)
            if not listening and channel in self._listeners:
                self._left_at[channel] = time.monotonic()

    # --- in the thread ---

    def _run(self) -> None:
        backoff, wake_pipe = Backoff(RETRY_BACKOFF), self._wake_pipe
        assert wake_pipe is not None
        try:
            while not self._closing:
                began = time.monotonic()
                with (
                    suppress(redis.RedisError, OSError),
                    closing(
                        SubscriberConnection(self._connect(), wake_pipe, self._on_message)
                    ) as subscriber,
                ):
                    self._receive_until_closed(subscriber)
                    return
                wake_pipe.wait(backoff.failed(lasted=time.monotonic() - began))
        finally:
            with self._lock:
                self._wake_pipe = None
            wake_pipe.close()

    def _receive_until_closed(self, subscriber: SubscriberConnection) -> None:
        """Receive notifications until the listener is closed."""
        self._subscriber = subscriber
        while not self._closing:
            subscriber.subscribe(self._wanted_channels())
            if subscriber.wait(self._wake_interval):
                self._wake(self._wanted_channels())

    def _wanted_channels(self) -> set[bytes]:
        """The channels to subscribe to; those without a listener for a while are dropped."""
        long_ago = time.monotonic() - _UNSUBSCRIBE_AFTER
        with self._lock:
            for channel in [
                channel for channel, left_at in self._left_at.items() if left_at < long_ago
            ]:
                del self._left_at[channel], self._listeners[channel]
            return set(self._listeners)

    def _on_message(self, channel: bytes) -> None:
        self._wake([channel])

    def _wake(self, channels: Iterable[bytes]) -> None:
        with self._lock:
            woken = [wakeup for channel in channels for wakeup in self._listeners.get(channel, ())]
        for wakeup in woken:
            wakeup.set()


class WakePipe:
    """A pipe that wakes a thread that polls a socket."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        with self._lock, suppress(BlockingIOError):
            if self._open:
                os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Read all pending wakes."""
        with suppress(BlockingIOError):
            os.read(self.read_fd, 4096)

    def wait(self, seconds: float) -> None:
        """Wait for a wake, or so many seconds."""
        poll = select.poll()
        poll.register(self.read_fd, select.POLLIN)
        poll.poll(seconds * 1000)
        self.clear()

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.read_fd)
                os.close(self._write_fd)

    def close_after_fork(self) -> None:
        """In a forked child: as `close`, without the lock, which no thread there would release."""
        if self._open:
            self._open = False
            os.close(self.read_fd)
            os.close(self._write_fd)


class SubscriberConnection:
    """A connection that subscribes to channels; calls `on_message(channel)` for every message, and
    once when a subscription is made.
    """

    def __init__(
        self, connection: Any, wake_pipe: WakePipe, on_message: Callable[[bytes], None]
    ) -> None:
        self._connection = connection
        self._wake_pipe = wake_pipe
        self._on_message = on_message
        self._channels: set[bytes] = set()
        self._received_at = time.monotonic()
        self._tick_at = time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN)  # noqa: SLF001 - redis-py has no word for what it waits on
        self._poll.register(wake_pipe.read_fd, select.POLLIN)
        self._reader = RespReader(connection)
        self._decrypted_bytes: Callable[[], int] = getattr(connection._sock, "pending", lambda: 0)  # noqa: SLF001

    def subscribe(self, channels: set[bytes]) -> None:
        """Subscribe to these channels and no others."""
        if new := channels - self._channels:
            self._connection.send_command("SUBSCRIBE", *new, check_health=False)
        if old := self._channels - channels:
            self._connection.send_command("UNSUBSCRIBE", *old, check_health=False)
        self._channels = channels

    def wait(self, interval: float) -> bool:
        """Receive messages until the pipe wakes; True when `interval` seconds have passed."""
        while (left := self._tick_at + interval - time.monotonic()) > 0:
            ready = dict(self._poll.poll(left * 1000))
            is_woken = self._wake_pipe.read_fd in ready
            if len(ready) > is_woken:
                self._receive_all()
            if is_woken:
                self._wake_pipe.clear()
                return False
        self._tick_at = time.monotonic()
        self._check_alive()
        return True

    def close(self) -> None:
        self._connection.disconnect()

    def close_after_fork(self) -> None:
        close_after_fork(self._connection)

    def _receive_all(self) -> None:
        """Whatever has arrived: what is at hand, and what an encrypted line has read ahead,
        makes no socket readable.
        """
        self._dispatch(self._reader.read())
        while self._reader.has_buffered or self._decrypted_bytes():
            self._dispatch(self._reader.read())
        self._received_at = time.monotonic()

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, redis.RedisError):
            raise message
        if message[0] in {b"message", b"subscribe"}:
            self._on_message(message[1])

    def _check_alive(self) -> None:
        """A connection that was silent has to answer, or is given up."""
        silent = time.monotonic() - self._received_at
        if silent > 2 * PING_AFTER_IDLE:
            raise redis.ConnectionError("no answer to a PING")
        if silent > PING_AFTER_IDLE and self._channels:
            self._connection.send_command("PING", check_health=False)
