"""Events of a group in a process that is not ours, through stdlib logging; where they go is that
process's business.
"""

from __future__ import annotations

import logging
from dataclasses import fields

from longwatch.core.events.base import Event, Events, Level

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
    """One line: the event's name and its facts, which are on the record as `longwatch_event`
    too.
    """
    level = _LEVELS[event.level]
    if _LOGGER.isEnabledFor(level):
        facts = " ".join(f"{field.name}={getattr(event, field.name)!r}" for field in fields(event))
        _LOGGER.log(level, "%s %s", event.name, facts, extra={"longwatch_event": event})
