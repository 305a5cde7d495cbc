"""Who listens besides us: known for certain, or taken for possible."""

from __future__ import annotations

import pytest

from longwatch.store.postgres.presence import (
    DISCOVERY_SECONDS,
    MAX_PEERS,
    PING_AFTER,
    PING_TIMEOUT,
    ListenerPresence,
)
from longwatch.testing import FakeClock

ME, YOU, ANOTHER = "0000000000aa", "0000000000bb", "0000000000cc"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def presence(clock: FakeClock) -> ListenerPresence:
    """Of one that has listened for long enough to know that it is alone."""
    made = ListenerPresence(ME, clock=clock)
    made.start()
    clock.advance(DISCOVERY_SECONDS)
    return made


def test_who_does_not_listen_cannot_know(clock: FakeClock) -> None:
    presence = ListenerPresence(ME, clock=clock)
    clock.advance(1e6)
    assert presence.may_have_peers


def test_who_just_began_to_listen_waits_for_answers(clock: FakeClock) -> None:
    presence = ListenerPresence(ME, clock=clock)
    presence.start()
    clock.advance(DISCOVERY_SECONDS - 0.01)
    before = presence.may_have_peers
    clock.advance(0.01)
    assert (True, False) == (before, presence.may_have_peers)


def test_who_has_lost_its_connection_knows_nothing(presence: ListenerPresence) -> None:
    presence.stop()
    assert presence.may_have_peers


@pytest.mark.parametrize(
    "payload",
    [f"hello {YOU}", f"here {YOU}>{ME}", f"here {YOU}>{ANOTHER}", f"{YOU}/channel", f"{YOU}/e/1/n"],
)
def test_whoever_is_heard_is_there(presence: ListenerPresence, payload: str) -> None:
    presence.receive(payload)
    assert presence.may_have_peers


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
def test_oneself_and_strangers_are_not(presence: ListenerPresence, payload: str) -> None:
    assert ((None, False), False) == (presence.receive(payload), presence.may_have_peers)


def test_who_begins_is_answered_each_time(presence: ListenerPresence) -> None:
    assert [(f"here {ME}>{YOU}", False)] * 2 == [presence.receive(f"hello {YOU}") for _ in range(2)]


@pytest.mark.parametrize("payload", [f"here {YOU}>{ANOTHER}", f"{YOU}/channel"])
def test_who_was_not_known_is_answered_once(presence: ListenerPresence, payload: str) -> None:
    assert [f"here {ME}>{YOU}", None] == [presence.receive(payload)[0] for _ in range(2)]


def test_two_that_answer_each_other_come_to_an_end(
    presence: ListenerPresence, clock: FakeClock
) -> None:
    other = ListenerPresence(YOU, clock=clock)
    other.start()
    first, _ = presence.receive(f"{YOU}/channel")
    second, _ = other.receive(first or "")
    third, _ = presence.receive(second or "")
    assert (f"here {ME}>{YOU}", f"here {YOU}>{ME}", None) == (first, second, third)


def test_who_is_answered_is_told_everything_from_then_on(presence: ListenerPresence) -> None:
    answered = [
        presence.receive(payload)[1]
        for payload in (f"here {YOU}>{ME}", f"here {YOU}>{ANOTHER}", f"{YOU}/channel")
    ]
    assert [True, False, False] == answered


def test_who_says_goodbye_is_gone(presence: ListenerPresence) -> None:
    presence.receive(f"hello {YOU}")
    presence.receive(f"hello {ANOTHER}")
    presence.receive(f"bye {YOU}")
    before = presence.may_have_peers
    presence.receive(f"bye {ANOTHER}")
    assert (True, False) == (before, presence.may_have_peers)


def test_nobody_is_asked_for_who_was_never_there(
    presence: ListenerPresence, clock: FakeClock
) -> None:
    clock.advance(1e6)
    assert not presence.should_ping()


def test_when_one_was_silent_for_long_it_asks_once_and_who_answers_stays(
    presence: ListenerPresence, clock: FakeClock
) -> None:
    presence.receive(f"{YOU}/channel")
    clock.advance(PING_AFTER - 0.01)
    early = presence.should_ping()
    presence.receive(f"{ANOTHER}/channel")
    clock.advance(0.01)
    asked = [presence.should_ping() for _ in range(2)]
    presence.receive(f"here {YOU}>{ME}")
    clock.advance(PING_TIMEOUT)
    presence.should_ping()
    presence.receive(f"bye {ANOTHER}")
    assert (False, [True, False], True) == (early, asked, presence.may_have_peers)


def test_who_does_not_answer_is_given_up(presence: ListenerPresence, clock: FakeClock) -> None:
    presence.receive(f"{YOU}/channel")
    clock.advance(PING_AFTER)
    assert presence.should_ping()
    clock.advance(PING_TIMEOUT)
    assert (False, False) == (presence.should_ping(), presence.may_have_peers)


def test_what_another_asks_need_not_be_asked(presence: ListenerPresence, clock: FakeClock) -> None:
    presence.receive(f"hello {YOU}")
    clock.advance(PING_TIMEOUT)
    presence.should_ping()
    clock.advance(PING_AFTER)
    presence.receive(f"hello {ANOTHER}")
    asked = presence.should_ping()
    clock.advance(PING_TIMEOUT)
    assert (False, False, {ANOTHER}) == (asked, presence.should_ping(), set(presence._last_seen))


def test_nobody_is_given_up_who_was_not_asked(presence: ListenerPresence, clock: FakeClock) -> None:
    presence.receive(f"{YOU}/channel")
    clock.advance(PING_AFTER + 10 * PING_TIMEOUT)
    assert (True, True) == (presence.should_ping(), presence.may_have_peers)


def test_strangers_fill_nothing_up(presence: ListenerPresence) -> None:
    answers = [
        presence.receive(f"{number:012x}/channel")[0]
        for number in range(0x1000, 0x1000 + MAX_PEERS + 5)
    ]
    assert (MAX_PEERS, [None] * 5) == (len(presence._last_seen), answers[MAX_PEERS:])
