"""Waking those who wait for a message, in every process: what scripts publish as hints, a look now
and then as the net below.

One thread a process and store, begun by the first who listens, with a connection of its own. It
does nothing but wait; when the server is gone, it comes back by the one backoff. A mailbox stays
subscribed for a while after the last has stopped to listen, because who receives in a loop listens
anew each time. Subscribing wakes too: what came before it was not heard.
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
from longwatch.host.errand import Errand
from longwatch.mailbox.redis_calls import RETRY
from longwatch.mailbox.redis_connection import PROVE_AFTER
from longwatch.mailbox.redis_line import abandon
from longwatch.mailbox.redis_reader import Reader

NET = 1.0
"""Seconds after which a listener is woken though no hint came."""
_UNHEARD = 60.0
"""A mailbox that nobody has listened to for so many seconds is unsubscribed."""
_PATIENCE = 2.0


class Wakeups:
    """Hints about the mailboxes of one server. Every method may be called from any thread."""

    def __init__(self, connect: Callable[[], Any], *, net: float = NET) -> None:
        self._connect = connect
        self._net = net
        self._lock = threading.Lock()
        self._listeners: dict[bytes, set[Wakeup]] = {}
        self._left_at: dict[bytes, float] = {}
        self._bell: Bell | None = None
        self._errand: Errand | None = None
        self._ear: Ear | None = None
        self._ending = False

    def listen(self, channel: str, wakeup: Wakeup) -> Callable[[], None]:
        """Have the wakeup set on every announcement, and every NET seconds in any case."""
        name = channel.encode()
        with self._lock:
            if self._ending:
                raise StoreClosedError("the store was closed; open it again")
            bell = self._bell or self._begin()
            is_new = name not in self._listeners
            self._listeners.setdefault(name, set()).add(wakeup)
            self._left_at.pop(name, None)
        if is_new:
            bell.ring()
        return lambda: self._forget(name, wakeup)

    def close(self) -> None:
        """End the thread and wait for that, unless it is the one that asks; idempotent."""
        with self._lock:
            self._ending = True
            bell, errand = self._bell, self._errand
        if bell is not None and errand is not None:
            bell.ring()
            if not errand.inside:
                errand.over.block(_PATIENCE)

    def abandon(self) -> None:
        """In a forked child, where the thread is not: close its copies of what the parent has
        open, without a lock.
        """
        if self._bell is not None:
            self._bell.abandon()
        if self._ear is not None:
            self._ear.abandon()

    def _begin(self) -> Bell:
        self._bell = Bell()
        self._errand = Errand(self._listen, name="longwatch-redis-wakeups", loud=True)
        try:
            self._errand.start()
        except RuntimeError as error:
            self._bell.close()
            self._bell = None
            raise StoreUnreachableError(f"no thread to listen with ({error}); try again") from error
        return self._bell

    def _forget(self, channel: bytes, wakeup: Wakeup) -> None:
        with self._lock:
            listening = self._listeners.get(channel, set())
            listening.discard(wakeup)
            if not listening and channel in self._listeners:
                self._left_at[channel] = time.monotonic()

    # --- in the thread ---

    def _listen(self) -> None:
        backoff, bell = Backoff(RETRY), self._bell
        assert bell is not None
        try:
            while not self._ending:
                began = time.monotonic()
                with (
                    suppress(redis.RedisError, OSError),
                    closing(Ear(self._connect(), bell, self._hear)) as ear,
                ):
                    self._attend(ear)
                    return
                bell.wait(backoff.failed(lasted=time.monotonic() - began))
        finally:
            with self._lock:
                self._bell = None
            bell.close()

    def _attend(self, ear: Ear) -> None:
        """Until told to end."""
        self._ear = ear
        while not self._ending:
            ear.subscribe(self._wanted())
            if ear.wait(self._net):
                self._wake(self._wanted())

    def _wanted(self) -> set[bytes]:
        """The channels to hear; those that nobody has asked for in a while are forgotten."""
        long_ago = time.monotonic() - _UNHEARD
        with self._lock:
            for channel in [
                channel for channel, left_at in self._left_at.items() if left_at < long_ago
            ]:
                del self._left_at[channel], self._listeners[channel]
            return set(self._listeners)

    def _hear(self, channel: bytes) -> None:
        self._wake([channel])

    def _wake(self, channels: Iterable[bytes]) -> None:
        with self._lock:
            heard = [wakeup for channel in channels for wakeup in self._listeners.get(channel, ())]
        for wakeup in heard:
            wakeup.set()


class Bell:
    """What a thread that waits for a socket can be roused by."""

    def __init__(self) -> None:
        self.ear, self._clapper = os.pipe()
        os.set_blocking(self.ear, False)
        os.set_blocking(self._clapper, False)
        self._lock = threading.Lock()
        self._open = True

    def ring(self) -> None:
        with self._lock, suppress(BlockingIOError):
            if self._open:
                os.write(self._clapper, b"\0")

    def hush(self) -> None:
        """Take what was rung."""
        with suppress(BlockingIOError):
            os.read(self.ear, 4096)

    def wait(self, seconds: float) -> None:
        """Until it rings, or so long."""
        poll = select.poll()
        poll.register(self.ear, select.POLLIN)
        poll.poll(seconds * 1000)
        self.hush()

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.ear)
                os.close(self._clapper)

    def abandon(self) -> None:
        """In a forked child: as `close`, without the lock, which nobody there would give back."""
        if self._open:
            self._open = False
            os.close(self.ear)
            os.close(self._clapper)


class Ear:
    """One connection that hears channels; calls `heard(channel)` for every message, and once
    when a subscription is made.
    """

    def __init__(self, connection: Any, bell: Bell, heard: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._bell = bell
        self._heard = heard
        self._channels: set[bytes] = set()
        self._heard_at = time.monotonic()
        self._tick_at = time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN)  # noqa: SLF001 - redis-py has no word for what it waits on
        self._poll.register(bell.ear, select.POLLIN)
        self._reader = Reader(connection)
        self._decrypted: Callable[[], int] = getattr(connection._sock, "pending", lambda: 0)  # noqa: SLF001

    def subscribe(self, channels: set[bytes]) -> None:
        """Hear these channels and no others."""
        if new := channels - self._channels:
            self._connection.send_command("SUBSCRIBE", *new, check_health=False)
        if old := self._channels - channels:
            self._connection.send_command("UNSUBSCRIBE", *old, check_health=False)
        self._channels = channels

    def wait(self, every: float) -> bool:
        """Hear what there is until the bell rings; True when `every` so many seconds have
        passed.
        """
        while (left := self._tick_at + every - time.monotonic()) > 0:
            ready = dict(self._poll.poll(left * 1000))
            is_called = self._bell.ear in ready
            if len(ready) > is_called:
                self._take_all()
            if is_called:
                self._bell.hush()
                return False
        self._tick_at = time.monotonic()
        self._prove()
        return True

    def close(self) -> None:
        self._connection.disconnect()

    def abandon(self) -> None:
        abandon(self._connection)

    def _take_all(self) -> None:
        """Whatever has arrived: what is at hand, and what an encrypted line has read ahead,
        makes no socket readable.
        """
        self._take(self._reader.read())
        while self._reader.has_more or self._decrypted():
            self._take(self._reader.read())
        self._heard_at = time.monotonic()

    def _take(self, message: Any) -> None:
        if isinstance(message, redis.RedisError):
            raise message
        if message[0] in {b"message", b"subscribe"}:
            self._heard(message[1])

    def _prove(self) -> None:
        """A connection that was silent has to answer, or is given up."""
        silent = time.monotonic() - self._heard_at
        if silent > 2 * PROVE_AFTER:
            raise redis.ConnectionError("no answer to a PING")
        if silent > PROVE_AFTER and self._channels:
            self._connection.send_command("PING", check_health=False)
