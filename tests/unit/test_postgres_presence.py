"""Who listens besides us: known for certain, or taken for possible."""

from __future__ import annotations

import pytest

from longwatch.store.postgres_presence import MOST, PATIENCE, SILENT_FOR, SURE_AFTER, Presence
from longwatch.testing import FakeClock

ME, YOU, ANOTHER = "0000000000aa", "0000000000bb", "0000000000cc"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def presence(clock: FakeClock) -> Presence:
    """Of one that has listened for long enough to know that it is alone."""
    made = Presence(ME, clock=clock)
    made.begin()
    clock.advance(SURE_AFTER)
    return made


def test_who_does_not_listen_cannot_know(clock: FakeClock) -> None:
    presence = Presence(ME, clock=clock)
    clock.advance(1e6)
    assert presence.may_be_others


def test_who_just_began_to_listen_waits_for_answers(clock: FakeClock) -> None:
    presence = Presence(ME, clock=clock)
    presence.begin()
    clock.advance(SURE_AFTER - 0.01)
    before = presence.may_be_others
    clock.advance(0.01)
    assert (True, False) == (before, presence.may_be_others)


def test_who_has_lost_its_connection_knows_nothing(presence: Presence) -> None:
    presence.end()
    assert presence.may_be_others


@pytest.mark.parametrize(
    "payload",
    [f"hello {YOU}", f"here {YOU}>{ME}", f"here {YOU}>{ANOTHER}", f"{YOU}/channel", f"{YOU}/e/1/n"],
)
def test_whoever_is_heard_is_there(presence: Presence, payload: str) -> None:
    presence.hear(payload)
    assert presence.may_be_others


@pytest.mark.parametrize(
    "payload",
    [
        f"hello {ME}",
        f"here {ME}>{YOU}",
        f"{ME}/channel",
        "/channel",
        f"bye {YOU}",
        f"bye {ME}",
        "",
        "hello",
        "hello ",
        f"hello {YOU * 600}",
        f"good day {YOU}",
        YOU,
        f" {YOU}",
        f"{YOU}\n/channel",
        "DROP TABLE/x",
        "> >",
    ],
)
def test_oneself_and_strangers_are_not(presence: Presence, payload: str) -> None:
    assert ((None, False), False) == (presence.hear(payload), presence.may_be_others)


def test_who_begins_is_answered_each_time(presence: Presence) -> None:
    assert [(f"here {ME}>{YOU}", False)] * 2 == [presence.hear(f"hello {YOU}") for _ in range(2)]


@pytest.mark.parametrize("payload", [f"here {YOU}>{ANOTHER}", f"{YOU}/channel"])
def test_who_was_not_known_is_answered_once(presence: Presence, payload: str) -> None:
    assert [f"here {ME}>{YOU}", None] == [presence.hear(payload)[0] for _ in range(2)]


def test_two_that_answer_each_other_come_to_an_end(presence: Presence, clock: FakeClock) -> None:
    other = Presence(YOU, clock=clock)
    other.begin()
    first, _ = presence.hear(f"{YOU}/channel")
    second, _ = other.hear(first or "")
    third, _ = presence.hear(second or "")
    assert (f"here {ME}>{YOU}", f"here {YOU}>{ME}", None) == (first, second, third)


def test_who_is_answered_is_told_everything_from_then_on(presence: Presence) -> None:
    answered = [
        presence.hear(payload)[1]
        for payload in (f"here {YOU}>{ME}", f"here {YOU}>{ANOTHER}", f"{YOU}/channel")
    ]
    assert [True, False, False] == answered


def test_who_says_goodbye_is_gone(presence: Presence) -> None:
    presence.hear(f"hello {YOU}")
    presence.hear(f"hello {ANOTHER}")
    presence.hear(f"bye {YOU}")
    before = presence.may_be_others
    presence.hear(f"bye {ANOTHER}")
    assert (True, False) == (before, presence.may_be_others)


def test_nobody_is_asked_for_who_was_never_there(presence: Presence, clock: FakeClock) -> None:
    clock.advance(1e6)
    assert not presence.asks()


def test_when_one_was_silent_for_long_it_asks_once_and_who_answers_stays(
    presence: Presence, clock: FakeClock
) -> None:
    presence.hear(f"{YOU}/channel")
    clock.advance(SILENT_FOR - 0.01)
    early = presence.asks()
    presence.hear(f"{ANOTHER}/channel")
    clock.advance(0.01)
    asked = [presence.asks() for _ in range(2)]
    presence.hear(f"here {YOU}>{ME}")
    clock.advance(PATIENCE)
    presence.asks()
    presence.hear(f"bye {ANOTHER}")
    assert (False, [True, False], True) == (early, asked, presence.may_be_others)


def test_who_does_not_answer_is_given_up(presence: Presence, clock: FakeClock) -> None:
    presence.hear(f"{YOU}/channel")
    clock.advance(SILENT_FOR)
    assert presence.asks()
    clock.advance(PATIENCE)
    assert (False, False) == (presence.asks(), presence.may_be_others)


def test_what_another_asks_need_not_be_asked(presence: Presence, clock: FakeClock) -> None:
    presence.hear(f"hello {YOU}")
    clock.advance(PATIENCE)
    presence.asks()
    clock.advance(SILENT_FOR)
    presence.hear(f"hello {ANOTHER}")
    asked = presence.asks()
    clock.advance(PATIENCE)
    assert (False, False, {ANOTHER}) == (asked, presence.asks(), set(presence._heard))


def test_nobody_is_given_up_who_was_not_asked(presence: Presence, clock: FakeClock) -> None:
    presence.hear(f"{YOU}/channel")
    clock.advance(SILENT_FOR + 10 * PATIENCE)
    assert (True, True) == (presence.asks(), presence.may_be_others)


def test_strangers_fill_nothing_up(presence: Presence) -> None:
    answers = [
        presence.hear(f"{number:012x}/channel")[0] for number in range(0x1000, 0x1000 + MOST + 5)
    ]
    assert (MOST, [None] * 5) == (len(presence._heard), answers[MOST:])
