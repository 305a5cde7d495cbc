"""The thread of a process that receives notifications, and the subscriptions that it wakes.

A notification is a hint: it says that a channel may have something new, and it may get lost. So
every subscription is also woken once every wake interval, also while the server is away. Only an
attempt to connect that blocks delays that, by its timeout at most.

A wakeup learns what has happened. Most wakeups do the same for all three:

| method   | reason                                                                               |
|----------|--------------------------------------------------------------------------------------|
| `hint()` | another process notified a channel; other processes got that notification, too       |
| `poll()` | a wake interval has passed, and notifications arrive                                 |
| `set()`  | this process notified a channel, another process wants every receiver to look,       |
|          | notifications were missed, or none can arrive                                        |

    not started ──first listen──► connecting ──► receiving ──close──► closed
                                   ▲      │          │
                                   └─backoff◄─error──┘

Invariants
    1. There is at most one thread. It starts with the first subscription and ends with `close`.
    2. Only the thread uses the connection. Other threads reach it through the wake pipe alone.
    3. A subscription is added before the thread starts, and so before a connection is made. The
       new connection reports the channels to wake: their earlier notifications were missed.
    4. A busy channel does not delay the wake interval of the others.

Failure cases
    The connection fails, or the server does not reply: the thread connects again after a backoff
    and wakes every subscription meanwhile. No thread can be started: `listen` raises, and the next
    call tries again. An error that is not the connection's: `threading.excepthook` reports it, the
    thread ends, and the next `listen` starts another one. A wakeup closes the listener from the
    thread itself: the thread ends after that wakeup. The process forks: the child has no such
    thread. `abandon` closes the child's copies of the descriptors, and the parent goes on.
"""

from __future__ import annotations

import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cache
from typing import ClassVar, NamedTuple, Protocol

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError, StoreUnreachableError
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.database import Channels

WAKE_INTERVAL = 1.0
"""Seconds after which every subscription is woken without a notification."""
RECONNECT_BACKOFF = BackoffPolicy(initial=0.1, factor=2.0, cap=5.0, jitter=0.25)
_CLOSE_TIMEOUT = 2.0

ChannelsToWake = Collection[str] | None
"""None: every channel."""


class Received(NamedTuple):
    """What a connection has read."""

    hinted: ChannelsToWake = ()
    """Channels that another process has notified."""
    missed: ChannelsToWake = ()
    """Channels that every receiver has to look at: they are received from now on and earlier
    notifications were missed, or another process notified all receivers.
    """


@cache
def warn_of_polling(reason: str) -> None:
    """Log, once per process, that notifications of other processes do not arrive."""
    import logging  # noqa: PLC0415 - rarely needed, and `longwatch up` starts sooner without it

    logging.getLogger("longwatch.store").warning(
        "messages of other processes are found by polling, once every %g s: %s",
        WAKE_INTERVAL,
        reason,
    )


class NotifyConnection(Protocol):
    """One connection that receives notifications. Only the listener's thread uses it."""

    @property
    def fileno(self) -> int:
        """The descriptor that becomes readable when a notification arrives."""

    @property
    def is_polling_only(self) -> bool:
        """Whether no notification can ever arrive."""

    def start(self) -> Iterable[ChannelsToWake]:
        """Begin to receive. Yields the channels to wake for notifications that were missed or came
        meanwhile.
        """

    def subscribe(self, channels: set[str]) -> None:
        """Receive these channels and no others. Does nothing on a connection that receives all."""

    def receive(self) -> Received:
        """Read the notifications that have arrived. Called when the descriptor is readable."""

    def check_alive(self) -> Received:
        """Called once every wake interval. Returns what arrived meanwhile; raises if the other side
        does not reply.
        """

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close the copy of the descriptor without notifying the server."""


class NotificationListener(ABC):
    """Receives notifications in one thread for all subscriptions of a process. Every method is
    thread-safe. A subclass implements `connect`.
    """

    thread_name: ClassVar[str]
    connection_errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of a failed connection, after which the thread connects again."""
    connects_in_caller: ClassVar[bool] = False
    """Whether the first `listen` makes the first connection; the thread tries again if it fails."""
    linger: ClassVar[float | None] = None
    """Seconds for which an unused channel stays subscribed; None: connections receive every
    channel.
    """

    def __init__(self, *, wake_interval: float = WAKE_INTERVAL) -> None:
        self.subscriptions = Subscriptions(linger=self.linger or 0.0)
        self.wake_interval = wake_interval
        self._lock = threading.Lock()
        self._pipe: WakePipe | None = None
        self._thread: BackgroundThread | None = None
        self._connection: NotifyConnection | None = None
        self._closed = False

    @abstractmethod
    def connect(self) -> NotifyConnection:
        """Make a connection; may block, may raise one of `connection_errors`."""

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Call the wakeup on every notification and once every wake interval.

        Returns a function that ends the subscription. Raises StoreClosedError after `close`.
        """
        names = (channels,) if isinstance(channels, str) else tuple(channels)
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            is_new = self.subscriptions.add(names, wakeup)
            try:
                pipe = self._pipe or self._start_thread()
            except BaseException:
                self.subscriptions.remove(names, wakeup)
                raise
        if is_new and self.linger is not None:
            pipe.wake()
        return lambda: self.subscriptions.remove(names, wakeup)

    def close(self) -> None:
        """End the thread and wait for it, unless called by the thread itself; idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if self._pipe is not None:
                self._pipe.wake()
        if thread is not None and not thread.in_own_thread:
            thread.done.block(_CLOSE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's descriptors, without a lock."""
        if self._pipe is not None:
            self._pipe.abandon()
        if self._connection is not None:
            self._connection.abandon()

    def _start_thread(self) -> WakePipe:
        connection = self._connection = self._connect_in_caller()
        pipe = WakePipe()
        thread = BackgroundThread(
            lambda: self._run(pipe, connection), name=self.thread_name, report_errors=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            pipe.close()
            if connection is not None:
                connection.close()
            raise StoreUnreachableError(
                f"the listener thread cannot start ({error}); try again"
            ) from error
        self._pipe, self._thread = pipe, thread
        return pipe

    def _connect_in_caller(self) -> NotifyConnection | None:
        if self.connects_in_caller:
            with suppress(*self.connection_errors):
                return self.connect()
        return None

    # --- in the thread ---

    def _run(self, pipe: WakePipe, connection: NotifyConnection | None) -> None:
        backoff = Backoff(RECONNECT_BACKOFF)
        try:
            while connection is not None or not self._closed:
                began = time.monotonic()
                try:
                    self._use(connection or self.connect(), pipe, backoff)
                except self.connection_errors:
                    delay = backoff.failed(lasted=time.monotonic() - began)
                    self._wait_before_reconnect(pipe, delay)
                connection = None
        finally:
            with self._lock:
                self._pipe = None
            pipe.close()

    def _use(self, connection: NotifyConnection, pipe: WakePipe, backoff: Backoff) -> None:
        """Receive on one connection until the listener is closed or the connection fails."""
        self._connection = connection
        try:
            for channels in connection.start():
                self.subscriptions.wake(channels)
            backoff.succeeded()
            wake_at = time.monotonic() + self.wake_interval
            while not self._closed:
                connection.subscribe(self.subscriptions.channels())
                if self._receive_until(wake_at, connection, pipe):
                    self._wake_received(connection.check_alive())
                    self._wake_by_interval(connection)
                    wake_at = time.monotonic() + self.wake_interval
        finally:
            self._connection = None
            connection.close()

    def _receive_until(self, wake_at: float, connection: NotifyConnection, pipe: WakePipe) -> bool:
        """Receive until the time is over; False when the pipe was woken before."""
        poll = select.poll()
        poll.register(connection.fileno, select.POLLIN)
        poll.register(pipe.fileno, select.POLLIN)
        while (left := wake_at - time.monotonic()) > 0:
            ready = dict(poll.poll(left * 1000))
            if connection.fileno in ready:
                self._wake_received(connection.receive())
            if pipe.fileno in ready:
                pipe.clear()
                return False
        return True

    def _wait_before_reconnect(self, pipe: WakePipe, delay: float) -> None:
        while delay > 0 and not self._closed:
            pipe.wait(min(delay, self.wake_interval))
            self.subscriptions.wake(None)
            delay -= self.wake_interval

    def _wake_received(self, received: Received) -> None:
        self.subscriptions.hint(received.hinted)
        self.subscriptions.wake(received.missed)

    def _wake_by_interval(self, connection: NotifyConnection) -> None:
        if connection.is_polling_only:
            self.subscriptions.wake(None)
        else:
            self.subscriptions.poll()


class WakePipe:
    """Wakes a thread that waits for a descriptor. Every method is thread-safe."""

    def __init__(self) -> None:
        self.fileno, self._write_fd = os.pipe()
        os.set_blocking(self.fileno, False)
        os.set_blocking(self._write_fd, False)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        """Make the descriptor readable; does nothing after `close`."""
        with self._lock, suppress(BlockingIOError):
            if self._open:
                os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Make later waits block again."""
        with suppress(BlockingIOError):
            os.read(self.fileno, 4096)

    def wait(self, seconds: float) -> None:
        """Wait until the pipe is woken or the time is over."""
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.poll(seconds * 1000)
        self.clear()

    def close(self) -> None:
        """Close both ends; idempotent."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """`close` in a forked child, without the lock, which another thread may have held."""
        if self._open:
            self._open = False
            os.close(self.fileno)
            os.close(self._write_fd)


class Subscriptions:
    """Which wakeups to call for which channel. Every method may be called from any thread.

    A channel without wakeups is kept for `linger` seconds: a receiver in a loop subscribes again
    in a moment, and its connection should not unsubscribe meanwhile.
    """

    def __init__(self, *, linger: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._by_channel: dict[str, set[Wakeup]] = {}
        self._left_at: dict[str, float] = {}
        self._linger = linger
        self._now = now
        self._lock = threading.Lock()

    def add(self, channels: Iterable[str], wakeup: Wakeup) -> bool:
        """Subscribe a wakeup. Returns whether a channel is new."""
        with self._lock:
            count = len(self._by_channel)
            for channel in channels:
                self._by_channel.setdefault(channel, set()).add(wakeup)
                self._left_at.pop(channel, None)
            return len(self._by_channel) > count

    def remove(self, channels: Iterable[str], wakeup: Wakeup) -> None:
        """Unsubscribe a wakeup; idempotent."""
        with self._lock:
            for channel in channels:
                wakeups = self._by_channel.get(channel)
                if wakeups is None:
                    continue
                wakeups.discard(wakeup)
                if not wakeups and self._linger:
                    self._left_at.setdefault(channel, self._now())
                elif not wakeups:
                    del self._by_channel[channel]

    def channels(self) -> set[str]:
        """Return the channels to receive. Forgets those that have lingered long enough."""
        with self._lock:
            long_ago = self._now() - self._linger
            for channel in [each for each, left_at in self._left_at.items() if left_at < long_ago]:
                del self._left_at[channel], self._by_channel[channel]
            return set(self._by_channel)

    def wake(self, channels: ChannelsToWake) -> None:
        """Set the wakeups of these channels."""
        for wakeup in self._wakeups(channels):
            wakeup.set()

    def hint(self, channels: ChannelsToWake) -> None:
        """Pass on that another process has notified these channels."""
        for wakeup in self._wakeups(channels):
            wakeup.hint()

    def poll(self) -> None:
        """Pass on to every wakeup that a wake interval has passed."""
        for wakeup in self._wakeups(None):
            wakeup.poll()

    def _wakeups(self, channels: ChannelsToWake) -> set[Wakeup]:
        """Return the wakeups of these channels, each once although it has several channels."""
        if not self._by_channel:
            return set()
        with self._lock:
            names = self._by_channel if channels is None else channels
            return {wakeup for name in names for wakeup in self._by_channel.get(name, ())}

    def __len__(self) -> int:
        """How many channels are known."""
        return len(self._by_channel)
