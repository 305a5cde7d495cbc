"""A datagram socket with a name, and the thread that hears it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longwatch.errors import StoreUnreachableError
from longwatch.host.errand import Errand

LARGEST = 4096
"""Bytes in one datagram."""
_PATIENCE = 2.0


class Ear:
    """Calls `heard(datagram)` in its own thread for every datagram, and with an empty one
    `every` so many seconds in any case.
    """

    def __init__(self, place: str, heard: Callable[[bytes], None], *, every: float) -> None:
        self._place = Path(place)
        self._heard = heard
        self._every = every
        self._socket = _bound(place)
        self._stop, self._stopper = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._stop, select.POLLIN)
        self._lock = threading.Lock()
        self._open = True
        self._errand = Errand(self._listen, name="longwatch-wakeups", loud=True)
        try:
            self._errand.start()
        except RuntimeError as error:
            self._let_go()
            raise StoreUnreachableError(f"no thread to listen with ({error}); try again") from error

    def close(self) -> None:
        """End the thread and wait for that, unless it is the one that asks; idempotent."""
        with self._lock:
            if self._open:
                os.write(self._stopper, b"\0")
        if not self._errand.inside:
            self._errand.over.block(_PATIENCE)

    def leave_behind(self) -> None:
        """In a forked child: close the parent's descriptors; its name stays, and its thread
        never was here.
        """
        if self._open:
            self._close_descriptors()

    def _listen(self) -> None:
        try:
            while self._wait():
                pass
        finally:
            self._let_go()

    def _wait(self) -> bool:
        """Hear what there is until it is time to hear nothing; False when told to stop."""
        until = time.monotonic() + self._every
        while (left := until - time.monotonic()) > 0:
            ready = dict(self._poll.poll(left * 1000))
            if self._stop in ready:
                return False
            with suppress(BlockingIOError):
                self._heard(self._socket.recv(LARGEST))
        self._heard(b"")
        return True

    def _let_go(self) -> None:
        with self._lock:
            self._open = False
            self._place.unlink(missing_ok=True)
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._socket.close()
        os.close(self._stop)
        os.close(self._stopper)


def _bound(place: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        bound.bind(place)
        Path(place).chmod(0o600)
    except OSError as error:
        bound.close()
        raise StoreUnreachableError(
            f"{place} cannot be listened at ({error}); check its directory"
        ) from error
    return bound
