"""Events of base."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Level(StrEnum):
    """How loud an event is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all events."""

    default_level: ClassVar[Level] = Level.INFO

    @property
    def level(self) -> Level:
        """How loud this one is: its class's loudness unless its facts say otherwise."""
        return self.default_level

    @property
    def name(self) -> str:
        """The event's name in logs and on pages."""
        return _snake_case(type(self).__name__)


Observer = Callable[[Event], None]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Events:
    """Fans each event out to every observer, in the order they subscribed.

    `emit` never raises: an observer that does, be it an exit, is counted in `failures` and the
    others still hear the event. Only an interrupt of the main thread is not the observer's, and
    goes on. Thread-safe.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers: tuple[Observer, ...] = observers
        self._lock = threading.Lock()
        self.failures = 0

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; returns what takes it off again."""
        with self._lock:
            self._observers = (*self._observers, observer)
        return lambda: self._unsubscribe(observer)

    @property
    def has_observers(self) -> bool:
        """Whether anybody listens: what is costly to tell is told only then."""
        return bool(self._observers)

    def emit(self, event: Event) -> None:
        """Tell every observer."""
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # an observer must not harm what it observes
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
