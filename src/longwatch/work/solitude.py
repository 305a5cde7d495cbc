"""Who runs beside whom in one process: rows that have crashed a process before run with nothing
beside them.

Every engine of a process has a seat. An engine that wants to run such a row asks for the process;
from then on no other begins anything, and when the last of them has nothing running any more, the
one who asked has the process to itself until it lets go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Solitude:
    """The seats of one process. Thread-safe; nothing here waits: seats are woken when it may be
    worth asking again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        self._asker: Seat | None = None

    def sit(self, wake: Callable[[], None]) -> Seat:
        """A seat for one engine; `wake` is called when something has changed for it."""
        seat = Seat(self, wake)
        with self._lock:
            self._seats.append(seat)
        return seat

    def is_wanted_by_another(self, seat: Seat) -> bool:
        return self._asker is not None and self._asker is not seat

    def occupy(self, seat: Seat) -> bool:
        with self._lock:
            seat.busy = seat.busy or self._asker in (None, seat)
            return self._asker in (None, seat)

    def vacate(self, seat: Seat) -> None:
        with self._lock:
            if not seat.busy:
                return
            seat.busy = False
            asker = self._asker
        if asker is not None and asker is not seat:
            asker.wake()

    def ask(self, seat: Seat) -> bool:
        with self._lock:
            first = self._asker is None
            if first:
                self._asker = seat
            granted = self._asker is seat and not any(
                other.busy for other in self._seats if other is not seat
            )
        if first and not granted:
            self._wake_others(seat)
        return granted

    def let_go(self, seat: Seat) -> None:
        with self._lock:
            if self._asker is not seat:
                return
            self._asker = None
        self._wake_others(seat)

    def leave(self, seat: Seat) -> None:
        self.vacate(seat)
        self.let_go(seat)
        with self._lock:
            if seat in self._seats:
                self._seats.remove(seat)

    def _wake_others(self, seat: Seat) -> None:
        for other in tuple(self._seats):
            if other is not seat:
                other.wake()


class Seat:
    """One engine's place."""

    def __init__(self, solitude: Solitude, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.busy = False
        self._solitude = solitude

    @property
    def hushed(self) -> bool:
        """Whether another engine wants the process to itself."""
        return self._solitude.is_wanted_by_another(self)

    def occupy(self) -> bool:
        """Say that rows may begin to run here; False if another engine wants the process to
        itself.
        """
        return self._solitude.occupy(self)

    def vacate(self) -> None:
        """Say that nothing runs here any more."""
        self._solitude.vacate(self)

    def ask(self) -> bool:
        """Ask for the process; True once nothing runs at any other seat. Keeps asking until it
        lets go.
        """
        return self._solitude.ask(self)

    def let_go(self) -> None:
        self._solitude.let_go(self)

    def leave(self) -> None:
        self._solitude.leave(self)
