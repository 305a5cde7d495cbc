"""The base class of events, and `Events`, which passes them to observers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar


class Level(StrEnum):
    """The severity of an event, as in logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all events."""

    default_level: ClassVar[Level] = Level.INFO
    text: ClassVar[str] = ""
    """A sentence for people, beside the name; empty for most events. Logs show it as `message`."""
    max_logged_per_second: ClassVar[int | None] = None
    """How many events of this class a log shows per second; None means all. Metrics count all."""

    @property
    def level(self) -> Level:
        """The level of this event: that of its class unless its fields imply another."""
        return self.default_level

    @property
    def name(self) -> str:
        """The event's name in logs and on pages."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


def event_fields(event: Event) -> dict[str, Any]:
    """Return its `message`, if it has a text, and its fields by name, without empty
    optional ones.
    """
    message = {"message": event.text} if event.text else {}
    return message | {
        field.name: value
        for field in fields(event)
        if (value := getattr(event, field.name)) or field.default not in _EMPTY
    }


_EMPTY: tuple[object, ...] = ("", ())

Observer = Callable[[Event], None]


class Events:
    """Passes each event to every observer, in the order they subscribed. Thread-safe.

    `emit` never raises because of an observer. An observer that raises, even SystemExit, is counted
    in `failures`, and the others still get the event. Only a KeyboardInterrupt in the main thread
    is raised on.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers: tuple[Observer, ...] = observers
        self._lock = threading.Lock()
        self.failures = 0

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; return a function that removes it."""
        with self._lock:
            self._observers = (*self._observers, observer)
        return lambda: self._unsubscribe(observer)

    @property
    def observer_count(self) -> int:
        return len(self._observers)

    @property
    def has_debug_observers(self) -> bool:
        """Whether an observer takes debug events; expensive ones are made only then."""
        return bool(self._observers)

    def emit(self, event: Event) -> None:
        """Pass the event to every observer, in this thread."""
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # an observer must not harm the code it observes
                with self._lock:
                    self.failures += 1
                if (
                    isinstance(error, KeyboardInterrupt)
                    and threading.current_thread() is threading.main_thread()
                ):
                    raise

    def _unsubscribe(self, observer: Observer) -> None:
        with self._lock:
            self._observers = tuple(known for known in self._observers if known is not observer)
