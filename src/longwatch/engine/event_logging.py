"""Logs the events of a group through stdlib logging, for a process that configures logging
itself.
"""

from __future__ import annotations

import logging

from longwatch.core.events.base import Event, Events, Level, event_fields

_LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
    Level.CRITICAL: logging.CRITICAL,
}
_LOGGER = logging.getLogger("longwatch.runtime")


class LoggedEvents(Events):
    """Events that are logged. A logger that ignores debug events does not observe them."""

    @property
    def has_debug_observers(self) -> bool:
        return self.observer_count > 1 or _LOGGER.isEnabledFor(logging.DEBUG)


def logged_events() -> Events:
    """Return Events that log every event."""
    return LoggedEvents(log_event)


def log_event(event: Event) -> None:
    """Log an event as one line: its name and its fields.

    The record carries the event as `longwatch_event`. Formatters print its traceback below the
    line, as for any exception.
    """
    level = _LEVELS[event.level]
    if not _LOGGER.isEnabledFor(level):
        return
    values = event_fields(event)
    traceback = values.pop("traceback", None)
    message = f"{event.name} " + " ".join(f"{name}={value!r}" for name, value in values.items())
    record = _LOGGER.makeRecord(
        _LOGGER.name,
        level,
        __file__,
        0,
        "%s",
        (message,),
        None,
        log_event.__name__,
        {"longwatch_event": event},
    )
    record.exc_text = traceback
    _LOGGER.handle(record)
