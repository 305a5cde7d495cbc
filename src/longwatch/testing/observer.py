"""An observer that records events, for tests that inspect or wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, overload

from longwatch.core.events.base import Event

EventT = TypeVar("EventT", bound=Event)

DEFAULT_TIMEOUT = 10.0


class RecordingObserver:
    """Records every event of an `Events` that it subscribes to, in order. Thread-safe."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of one type."""
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """The names of the events, in order."""
        with self._changed:
            return [event.name for event in self.events]

    @overload
    def wait_for(self, wanted: type[EventT], timeout: float = DEFAULT_TIMEOUT) -> EventT: ...
    @overload
    def wait_for(
        self, wanted: Callable[[Event], bool], timeout: float = DEFAULT_TIMEOUT
    ) -> Event: ...
    def wait_for(
        self, wanted: type[Event] | Callable[[Event], bool], timeout: float = DEFAULT_TIMEOUT
    ) -> Event:
        """Block until there is an event of that type, or for which the predicate is true, and
        return the first. Raises AssertionError after the timeout.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._first(wanted), timeout)
            found = self._first(wanted)
            if found is None:
                raise AssertionError(
                    f"{wanted} did not happen within {timeout} s; these did: "
                    f"{[event.name for event in self.events]}"
                )
            return found

    def _first(self, wanted: type[Event] | Callable[[Event], bool]) -> Event | None:
        fits = (lambda event: isinstance(event, wanted)) if isinstance(wanted, type) else wanted
        return next((event for event in self.events if fits(event)), None)
