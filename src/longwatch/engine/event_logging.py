"""Events of a group in a process that is not ours, through stdlib logging; where they go is that
process's business.
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


def logged_events() -> Events:
    """Events that are logged."""
    return Events(log_event)


def log_event(event: Event) -> None:
    """One line: the event's name and its fields. The event is on the record as `longwatch_event`.
    Formatters print its traceback below, as that of any exception.
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
