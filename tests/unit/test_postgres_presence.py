"""Who listens besides us: known for certain, or taken for possible."""

from __future__ import annotations

import pytest

from longwatch.store.postgres_presence import PATIENCE, SILENT_FOR, SURE_AFTER, Presence
from longwatch.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def presence(clock: FakeClock) -> Presence:
    """Of one that has listened for long enough to know that it is alone."""
    made = Presence("me", clock=clock)
    made.begin()
    clock.advance(SURE_AFTER)
    return made


def test_who_does_not_listen_cannot_know(clock: FakeClock) -> None:
    presence = Presence("me", clock=clock)
    clock.advance(1e6)
    assert presence.may_be_others


def test_who_just_began_to_listen_waits_for_answers(clock: FakeClock) -> None:
    presence = Presence("me", clock=clock)
    presence.begin()
    clock.advance(SURE_AFTER - 0.01)
    before = presence.may_be_others
    clock.advance(0.01)
    assert (True, False) == (before, presence.may_be_others)


def test_who_has_lost_its_connection_knows_nothing(presence: Presence) -> None:
    presence.end()
    assert presence.may_be_others


@pytest.mark.parametrize("payload", ["hello you", "here you>me", "here you>another", "you/channel", "you/execution/1/node"])
def test_whoever_is_heard_is_there(presence: Presence, payload: str) -> None:
    presence.hear(payload)
    assert presence.may_be_others


@pytest.mark.parametrize("payload", ["hello me", "here me>you", "me/channel", "/channel", "", "bye you", "bye me"])
def test_oneself_and_those_of_whom_nobody_knows_are_not(presence: Presence, payload: str) -> None:
    assert ((None, False), False) == (presence.hear(payload), presence.may_be_others)


def test_who_begins_is_answered(presence: Presence) -> None:
    assert ("here me>you", False) == presence.hear("hello you")


def test_who_is_answered_is_told_everything_from_then_on(presence: Presence) -> None:
    answered = [presence.hear(payload)[1] for payload in ("here you>me", "here you>another", "you/channel")]
    assert [True, False, False] == answered


def test_who_says_goodbye_is_gone(presence: Presence) -> None:
    presence.hear("hello you")
    presence.hear("hello another")
    presence.hear("bye you")
    before = presence.may_be_others
    presence.hear("bye another")
    assert (True, False) == (before, presence.may_be_others)


def test_nobody_is_asked_for_who_was_never_there(presence: Presence, clock: FakeClock) -> None:
    clock.advance(1e6)
    assert not presence.asks()


def test_after_a_long_silence_it_asks_once_and_who_answers_stays(presence: Presence, clock: FakeClock) -> None:
    presence.hear("hello you")
    clock.advance(SILENT_FOR - 0.01)
    early = presence.asks()
    clock.advance(0.01)
    asked = [presence.asks() for _ in range(2)]
    presence.hear("here you>me")
    clock.advance(PATIENCE)
    assert (False, [True, False], False, True) == (early, asked, presence.asks(), presence.may_be_others)


def test_who_does_not_answer_is_forgotten(presence: Presence, clock: FakeClock) -> None:
    presence.hear("hello you")
    clock.advance(SILENT_FOR)
    assert presence.asks()
    clock.advance(PATIENCE)
    assert (False, False) == (presence.asks(), presence.may_be_others)
