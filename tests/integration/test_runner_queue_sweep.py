from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flow_stores import KINDS, opened_store
from intake_rig import IntakeRig, item, items, running_intake
from longwatch.core.events.runner import QueuedEventExpired
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import UsageError
from longwatch.runner.policy import RunnerPolicy
from longwatch.runner.seams import StreamItem
from longwatch.store.database import Database


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def rig(database: Database) -> Iterator[IntakeRig]:
    with running_intake(database, "eu", "us") as opened:
        yield opened


def fail_once(rig: IntakeRig, *, reason: str = "failed") -> str:
    """Claim the oldest message and give it up, as a mailbox does; its id."""
    backend = rig.mailbox()
    owner = backend.default_owner()
    [row] = backend.exchange([], owner=owner, limit=1, lease_seconds=60).claimed
    backend.settle([Settlement(row.claim, RowOutcome.DEAD, reason=reason, error="it broke")])
    return str(row.item.id)


def test_events_that_waited_too_long_expire(rig: IntakeRig, database: Database) -> None:
    """Events that were never started expire after the maximum age; one that was stays."""
    rig.take(items(*range(500)))
    backend = rig.mailbox()
    owner = backend.default_owner()
    [row] = backend.exchange([], owner=owner, limit=1, lease_seconds=60).claimed
    backend.settle([Settlement(row.claim, RowOutcome.RELEASED)])
    database.jump.wall += 599
    rig.take(items(900))
    assert rig.intake.sweep() == 0
    received = rig.store.events(limit=1)[0].received_at
    assert not rig.intake.is_expired(received)
    database.jump.wall += 2
    assert rig.intake.is_expired(received - 600)
    assert rig.intake.sweep() == 499
    assert ["0", "900"] == sorted(rig.queued())
    outcomes = rig.outcomes()
    assert ("open", "expired", "open") == (outcomes["0"], outcomes["1"], outcomes["900"])
    shown = [each for each in rig.emitted if isinstance(each, QueuedEventExpired)]
    assert [1, 1, 497] == [each.count for each in shown]
    assert all(each.age >= 600 for each in shown)
    assert rig.intake.sweep() == 0


def test_without_a_maximum_age_nothing_expires(database: Database) -> None:
    with running_intake(database, policy=RunnerPolicy(max_queue_age=None)) as rig:
        rig.take(items(1))
        database.jump.wall += 1e6
        assert rig.intake.sweep() == 0
        assert not rig.intake.is_expired(0.0)


def test_events_whose_message_is_gone_get_their_outcome(rig: IntakeRig) -> None:
    """A message that the mailbox gave up, or that an operator removed, ends its event."""
    rig.take(items(1, 2, 3))
    rig.take(items(4), source="us")
    fail_once(rig, reason="poison")
    rig.mailbox().cancel(rig.mailbox().peek(limit=1)[0].id)
    rig.mailbox("us").purge()
    assert rig.intake.sweep() == 3
    assert {"1": "dead-lettered poison", "2": "dropped purged", "3": "open"} == rig.outcomes()
    assert {"4": "dropped purged"} == rig.outcomes("us")
    assert rig.intake.sweep() == 0


def test_a_replayed_dead_letter_opens_its_event_again(rig: IntakeRig, database: Database) -> None:
    """An event whose dead letter an operator replays is open, and is not expired at once."""
    rig.take(items(1))
    event_id = fail_once(rig)
    rig.intake.sweep()
    database.jump.wall += 1000
    assert [True] == rig.mailbox().replay([event_id])
    rig.intake.sweep()
    assert {"1": "open"} == rig.outcomes()
    assert ["1"] == rig.queued()


def test_old_events_are_deleted_once_they_have_an_outcome(database: Database) -> None:
    """After the retention an event is deleted, unless it is open; what is younger stays."""
    with running_intake(database, "old", policy=RunnerPolicy(max_queue_age=None)) as rig:
        rig.take([item(n, severity="debug") for n in range(1200)] + items(2000), source="old")
        database.jump.wall += 7 * 86_400
        rig.take([item(3000, severity="debug")], source="old")
        database.jump.wall += 60
        assert rig.intake.sweep() == 1200
        assert {"2000": "open", "3000": "filtered severity"} == rig.outcomes("old")


def test_an_event_is_retried(rig: IntakeRig, database: Database) -> None:
    """A retry queues an event that has ended, replaces its dead letter, and begins to count its
    age again.
    """
    rig.take([item(1), item(2, severity="debug")])
    event_id = fail_once(rig)
    rig.intake.sweep()
    database.jump.wall += 10_000
    assert rig.store.retry(event_id).outcome is None
    assert [] == rig.dead()
    assert rig.intake.sweep() == 0
    [message] = rig.mailbox().peek(limit=10)
    assert (event_id, 0, 0) == (message.id, message.deliveries, message.failures)
    filtered = rig.store.events(outcome="filtered")[0]
    rig.store.retry(filtered.id)
    assert ["1", "2"] == rig.queued()


def test_an_event_that_cannot_be_retried_is_refused(rig: IntakeRig) -> None:
    """Unknown, malformed and open events are refused with the reason."""
    rig.take([item(1), StreamItem("{", "2")])
    opened, broken = rig.store.events()
    for event_id, text in [
        ("x", "no stream event"),
        (broken.id, "malformed"),
        (opened.id, "queued"),
    ]:
        with pytest.raises(UsageError, match=text):
            rig.store.retry(event_id)
    assert ["1"] == rig.queued()


def test_events_are_listed_by_outcome_and_source(rig: IntakeRig) -> None:
    """The newest events come last; filters and counts name open events `open`."""
    rig.take([item(1), item(2, severity="debug"), StreamItem("{", "3"), item(4)])
    rig.take(items(5), source="us")
    listed = rig.store.events(limit=3)
    assert ["3", "4", "5"] == [event.stream_id for event in listed]
    assert ["5"] == [event.stream_id for event in rig.store.events(after=listed[1].seq)]
    assert ["1", "4"] == [
        event.stream_id for event in rig.store.events(outcome="open", source="eu")
    ]
    assert rig.store.event("unknown") is None
    assert [
        ("eu", "dead-lettered", "malformed", 1),
        ("eu", "filtered", "severity", 1),
        ("eu", "open", "", 2),
        ("us", "open", "", 1),
    ] == [tuple(each) for each in rig.store.outcomes()]


def test_sources_are_listed_with_their_state(rig: IntakeRig) -> None:
    """A source shows its connection, its last event and how many events wait and run."""
    rig.take(items(1, 2))
    rig.mailbox().exchange([], owner=rig.mailbox().default_owner(), limit=1, lease_seconds=60)
    rig.store.report_connection("eu", state="waiting", reconnects=4, error="refused\0")
    europe, america = rig.store.sources()
    assert ("eu", "waiting", "2", 4, "refused\\x00", True, 1, 1) == (
        europe.name,
        europe.state,
        europe.last_event_id,
        europe.reconnects,
        europe.error,
        europe.is_held,
        europe.queue_depth,
        europe.running,
    )
    assert europe.last_event_at is not None
    assert (america.last_event_at, america.queue_depth) == (None, 0)
    assert {"eu": 1, "us": 0} == rig.store.queue_depths()
