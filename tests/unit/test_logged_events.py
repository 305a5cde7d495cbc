"""Debug events are made only for an observer that takes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from longwatch.engine.event_logging import logged_events

LOGGER = logging.getLogger("longwatch.runtime")


@pytest.fixture(autouse=True)
def restored_level() -> Iterator[None]:
    before = LOGGER.level
    yield
    LOGGER.setLevel(before)


@pytest.mark.parametrize(("level", "expected"), [(logging.DEBUG, True), (logging.INFO, False)])
def test_a_logger_observes_debug_events_by_its_level(level: int, *, expected: bool) -> None:
    LOGGER.setLevel(level)
    assert expected is logged_events().has_debug_observers


def test_any_other_observer_takes_debug_events() -> None:
    LOGGER.setLevel(logging.INFO)
    events = logged_events()
    leave = events.subscribe(lambda _: None)
    assert events.has_debug_observers
    leave()
    assert not events.has_debug_observers
