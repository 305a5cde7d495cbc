"""The connections of one process: as many as are used at once, up to a bound.

psycopg_pool is not used: it connects from threads of its own at start, where this one connects when
somebody needs it, in the time that call has, and can be left behind in a fork.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakSet

from longwatch.errors import StoreBusyError, StoreClosedError
from longwatch.store.postgres_wire import Wire

SIZE = 8


class _Loan:
    """A place among the connections, and the one that has it."""

    __slots__ = ("__weakref__", "wire")

    def __init__(self) -> None:
        self.wire: Wire | None = None


class Pool:
    """Lends connections. Every method may be called from any thread."""

    def __init__(self, connect: Callable[[float], Wire], *, size: int = SIZE) -> None:
        self._connect = connect
        self._size = size
        self._every: WeakSet[Wire] = WeakSet()
        self._ages: WeakKeyDictionary[Wire, int] = WeakKeyDictionary()
        self._age = 0
        """Raised whenever one could not be used to the end: those that were made before are not
        used again.
        """
        self._free: list[Wire] = []
        self._loans: WeakSet[_Loan] = (
            WeakSet()
        )  # one that an interrupt tore out of our hands ends with whoever had it
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def one(self, deadline: float) -> Iterator[Wire]:
        """A connection that nobody else uses meanwhile; the one that was used last, for it is
        warm.
        """
        loan = _Loan()
        try:
            self._take(loan, deadline)
            if loan.wire is None:
                age = self._age
                loan.wire = self._connect(deadline)
                self._ages[loan.wire] = age
                self._every.add(loan.wire)
            yield loan.wire
        finally:
            self._give_back(loan)

    def close(self) -> None:
        """Close those that are free; the others are closed when they come back. Idempotent."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for wire in free:
            self._drop(wire)

    def leave_behind(self) -> None:
        """In a forked child."""
        for wire in self._every:
            wire.leave_behind()

    def _take(self, loan: _Loan, deadline: float) -> None:
        """A place, with a free connection if there is one."""
        with self._changed:
            while not self._closed:
                if len(self._loans) < self._size:
                    self._loans.add(loan)
                    loan.wire = self._alive()
                    return
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StoreBusyError(
                        f"all {self._size} connections were in use all the time; nothing was "
                        f"written, try again"
                    )
        raise StoreClosedError("the store was closed; open it again")

    def _alive(self) -> Wire | None:
        while self._free:
            wire = self._free.pop()
            if wire.is_alive():
                return wire
            self._drop(wire)
        return None

    def _give_back(self, loan: _Loan) -> None:
        """If one could not be used to the end, no other of its time is trusted: on a dead network
        all look alive, and those to a server that was demoted stay read-only.
        """
        dropped: list[Wire] = []
        wire = loan.wire
        with self._changed:
            self._loans.discard(loan)
            if wire is not None and wire.is_quiet and not self._closed:
                (self._free if self._ages[wire] == self._age else dropped).append(wire)
            elif wire is not None:
                dropped, self._free = [wire, *self._free], []
                self._age += 1
            self._changed.notify()
        for each in dropped:
            self._drop(each)

    def _drop(self, wire: Wire) -> None:
        self._every.discard(wire)
        wire.close()
