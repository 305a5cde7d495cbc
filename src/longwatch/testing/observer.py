"""An observer that remembers what happened, for tests that ask or wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, overload

from longwatch.core.events.base import Event

EventT = TypeVar("EventT", bound=Event)

DEFAULT_TIMEOUT = 10.0


class RecordingObserver:
    """Subscribe it to an `Events`; it keeps every event in `events`, in order. Thread-safe."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[EventT]) -> list[EventT]:
        """The events of one type."""
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """What happened, by name."""
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
        """The first event of that type, or that the predicate takes, as soon as there is one;
        AssertionError after the timeout.
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
