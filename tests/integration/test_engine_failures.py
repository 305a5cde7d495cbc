"""What the engine makes of work that raises: tracebacks, the last failure, releases, and dead
letters by name.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine_rig import FakeRow, GatedRunner, running_engine
from longwatch import Release
from longwatch.core.events.base import Events, Level
from longwatch.core.events.engine import MessageDeadLettered, WorkFailed, WorkReleased
from longwatch.core.traceback_text import MAX_TRACEBACK_BYTES
from longwatch.engine.claim_source import ClaimedRow, GivenUp, RowOutcome
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine
from longwatch.errors import PermanentError
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.testing import RecordingObserver
from loop_rig import GatedLoop, running_loop, wait_until

DEAD, FAILED, RELEASED = RowOutcome.DEAD, RowOutcome.FAILED, RowOutcome.RELEASED


def charge() -> None:
    raise OSError("postgresql://shop:hunter2@db refused " + "x" * 50_000)


def bill(leased: ClaimedRow, context: RowContext) -> None:
    try:
        charge()
    except OSError as error:
        raise ValueError("not billed") from error


async def bill_async(leased: ClaimedRow, context: RowContext) -> None:
    await asyncio.sleep(0)
    bill(leased, context)


# --- tracebacks ---


@pytest.mark.parametrize("work", [bill, bill_async])
def test_a_failure_leaves_its_traceback_in_the_event_and_in_the_settlement(work: Any) -> None:
    """The frames are the user's, causes included; secrets are masked, and it is bounded."""
    with running_engine(work, FakeRow(1)) as rig:
        rig.source.wait_for_settlements((1, FAILED))
        [settlement] = rig.source.settlements
        event = rig.observer.wait_for(WorkFailed)
    text = settlement.traceback or ""
    assert ("message-1", text) == (event.message_id, event.traceback)
    assert text.endswith("ValueError: not billed")
    assert "in charge\n    raise OSError(" in text
    assert "OSError: postgresql://***@db refused" in text
    assert "direct cause" in text
    assert "hunter2" not in text
    assert "longwatch/engine" not in text
    assert "concurrent/futures" not in text
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES


def test_the_error_of_a_settlement_is_masked_as_well() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.fail(1, ValueError("token=hunter2"))
        rig.source.wait_for_settlements((1, FAILED))
        assert "ValueError: token=***" == rig.source.settlements[0].error


# --- the last failure ---


def test_the_last_failure_is_a_dead_letter_at_once_and_announces_no_retry() -> None:
    """A row that may fail once more waits for no retry that never comes."""
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1, failures=4, failures_left=1)) as rig:
        gate.fail(1, ValueError("no"))
        rig.source.wait_for_settlements((1, DEAD))
        [settlement] = rig.source.settlements
        dead_lettered = rig.observer.wait_for(MessageDeadLettered)
        [failed] = rig.observer.of(WorkFailed)
    assert ("failed", "ValueError: no", 0.0) == (
        settlement.reason,
        settlement.error,
        settlement.delay,
    )
    assert (settlement.traceback or "").endswith("ValueError: no")
    assert (None, "message-1") == (failed.retry_in, failed.message_id)
    assert (
        MessageDeadLettered(
            mailbox="orders", message_id="message-1", reason="failed", error="ValueError: no"
        )
        == dead_lettered
    )


def test_a_failure_before_the_last_is_tried_again() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1, failures=3, failures_left=2)) as rig:
        gate.fail(1, ValueError("no"))
        rig.source.wait_for_settlements((1, FAILED))
        assert rig.source.settlements[0].delay == rig.observer.wait_for(WorkFailed).retry_in
        assert [] == rig.observer.of(MessageDeadLettered)


# --- dead letters by name ---


def test_every_dead_letter_of_a_source_is_reported() -> None:
    """In whichever way it comes about: settled, instead of a claim, in a sweep."""
    gate = GatedRunner()
    with running_engine(gate) as rig:
        rig.wait_idle()
        rig.source.given_up = {
            "exchange": [GivenUp("a", "orders", "poison")],
            "sweep": [GivenUp("b", "orders", "lost")],
        }
        rig.source.put(FakeRow(1))
        gate.fail(1, PermanentError("never"))
        rig.source.wait_for_settlements((1, DEAD))
        rig.wait_idle()
        rig.pass_time(1300.0)
        reported = rig.observer.of(MessageDeadLettered)
    assert {("a", "poison"), ("message-1", "permanent"), ("b", "lost")} == {
        (each.message_id, each.reason) for each in reported
    }
    assert ["orders"] * 3 == [each.mailbox for each in reported]


def test_a_dead_letter_that_the_source_refused_is_not_reported() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.source.reclaim(1)
        gate.fail(1, PermanentError("never"))
        rig.wait_idle()
        assert [] == rig.observer.of(MessageDeadLettered)


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


def test_a_message_that_the_handler_rejects_is_reported_even_if_the_handler_raises_then(
    mailbox: Mailbox[Any],
) -> None:
    def work(message: Message[Any], context: RowContext) -> None:
        message.reject("unknown page")
        if message.body == "raises":
            raise ValueError("afterwards")

    observer = RecordingObserver()
    ids = [mailbox.send("returns"), mailbox.send("raises")]
    with Engine(mailbox.backend, MessageRunner(mailbox, work), events=Events(observer)):
        wait_until(lambda: len(observer.of(MessageDeadLettered)) == 2)
    assert [("jobs", each, "permanent", "unknown page") for each in ids] == [
        (each.mailbox, each.message_id, each.reason, each.error)
        for each in observer.of(MessageDeadLettered)
    ]


# --- releases ---


def test_a_release_gives_the_row_back_with_its_delay_and_without_blame() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1, failures_left=1)) as rig:
        gate.fail(1, Release(delay=7.5, reason="rate limited"))
        rig.source.wait_for_settlements((1, RELEASED))
        [settlement] = rig.source.settlements
        released = rig.observer.wait_for(WorkReleased)
        assert [] == rig.observer.of(WorkFailed)
    assert (7.5, None, None) == (settlement.delay, settlement.error, settlement.traceback)
    assert ("message-1", 7.5, "rate limited", Level.INFO) == (
        released.message_id,
        released.delay,
        released.reason,
        released.level,
    )


@pytest.mark.parametrize(
    ("releases", "asked", "delay"),
    [(0, 0.0, 0.0), (1, 0.0, 0.0), (2, 0.0, 1.0), (9, 0.25, 1.0), (2, 3.0, 3.0)],
)
def test_from_the_third_release_on_there_is_a_minimum_delay(
    releases: int, asked: float, delay: float
) -> None:
    """A row that is given back again and again does not keep its workers busy with nothing."""
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1, releases=releases)) as rig:
        gate.fail(1, Release(delay=asked))
        rig.observer.wait_for(WorkReleased)
        rig.source.wait_until(lambda: bool(rig.source.settlements))
        assert delay == rig.source.settlements[0].delay


class CarelessRelease(Release):
    """A subclass that forgets its base, or sets what no row can wait for."""

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)


@pytest.mark.parametrize("delay", [None, "soon", -1, float("nan"), float("inf"), 10**400, True])
@pytest.mark.parametrize("has_delay", [True, False])
def test_a_release_without_a_usable_delay_gives_the_row_back_at_once(
    delay: Any, *, has_delay: bool
) -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.fail(1, CarelessRelease(delay=delay) if has_delay else CarelessRelease())
        rig.source.wait_for_settlements((1, RELEASED))
        assert 0.0 == rig.source.settlements[0].delay


def test_a_handler_of_a_loop_can_release_its_message(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox, responses=open_mailbox(MemoryStore(), "responses"))
    message_id = mailbox.send("x")
    with running_loop(loop):
        loop.next_started()
        loop.fail("x", Release(delay=0.01))
        second = loop.next_started().context
        assert (2, 0) == (second.attempt, second._row_context.claimed.failures)
        loop.open("x")
        wait_until(lambda: mailbox.approximate_count() == 0)
    assert [message_id] == [each.message_id for each in loop.observer.of(WorkReleased)]
    assert [] == loop.observer.of(WorkFailed)


def test_an_async_handler_can_release_its_message(mailbox: Mailbox[Any]) -> None:
    runs: list[int] = []

    async def work(message: Message[Any], context: RowContext) -> None:
        await asyncio.sleep(0)
        runs.append(message.failures)
        if len(runs) == 1:
            raise Release

    observer = RecordingObserver()
    mailbox.send("x")
    with Engine(mailbox.backend, MessageRunner(mailbox, work), events=Events(observer)):
        wait_until(lambda: mailbox.approximate_count() == 0)
    assert ([0, 0], 1) == (runs, len(observer.of(WorkReleased)))
