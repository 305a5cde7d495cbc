from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.cancel import CancelToken
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import ClaimedRow, RowOutcome
from longwatch.engine.context import RowContext, SlotActivity
from longwatch.engine.error_policy import settlement_for
from longwatch.errors import CancelledError, PermanentError
from longwatch.host.beatpage import BeatPage, read_page
from longwatch.mailbox.records import MessageRecord
from longwatch.store.claims import Claim

RETRY = BackoffPolicy(initial=10.0, factor=2.0, cap=900.0)
DELIVERY = MessageRecord(
    "id", b"", deliveries=3, failures=2, crashes=0, enqueued_at=0.0, reply_to=None
)


class NeverThisError(PermanentError):
    """A user's own."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(monotonic=100.0)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BeatPage]:
    page = BeatPage(tmp_path / "page", 2)
    yield page
    page.close()


@pytest.fixture
def pulse(clock: FakeClock, page: BeatPage) -> SlotActivity:
    return SlotActivity(clock, page, 1)


@pytest.fixture
def context(clock: FakeClock, pulse: SlotActivity) -> RowContext:
    return RowContext(
        ClaimedRow(Claim(7, 1, 42), DELIVERY),
        pulse,
        Deadline.never(clock),
        started_at=clock.monotonic(),
    )


def test_it_tells_the_attempt_the_fencing_token_and_the_deadline(context: RowContext) -> None:
    assert (3, 42, None) == (context.attempt, context.fencing_token, context.deadline.remaining())


def test_a_source_that_does_not_count_deliveries_is_at_the_first() -> None:
    assert (1, 0) == (
        ClaimedRow(Claim(1, 1, 1), object()).attempt,
        ClaimedRow(Claim(1, 1, 1), object()).failures,
    )


def test_begin_beat_and_end_are_seen_on_the_page_and_on_the_heartbeat(
    clock: FakeClock, page: BeatPage, pulse: SlotActivity, context: RowContext
) -> None:
    pulse.begin(7, clock.monotonic())
    clock.advance(5.0)
    context.beat("half")
    seen = read_page(str(page.path))
    assert seen is not None
    assert (105.0, 7, 100.0, False) == seen.slots[1]
    assert (0.0, "half") == (pulse.heartbeat.elapsed(), pulse.heartbeat.progress)
    pulse.end()
    ended = read_page(str(page.path))
    assert ended is not None
    assert frozenset() == ended.running_rows


def test_only_the_row_that_still_runs_is_declared_silent(
    page: BeatPage, pulse: SlotActivity
) -> None:
    """A row that ended, or made room for the next one, meanwhile is not marked."""
    pulse.begin(7, 100.0)
    pulse.end()
    pulse.mark_silent(7)
    pulse.begin(8, 101.0)
    pulse.mark_silent(7)
    seen = read_page(str(page.path))
    assert seen is not None
    assert (frozenset({8}), frozenset()) == (seen.running_rows, seen.silent_rows)
    pulse.mark_silent(8)
    seen = read_page(str(page.path))
    assert seen is not None
    assert frozenset({8}) == seen.silent_rows


def test_a_thread_that_was_left_behind_does_not_beat_for_the_next_row(
    clock: FakeClock, pulse: SlotActivity, context: RowContext
) -> None:
    context.close()
    clock.advance(5.0)
    context.beat("late")
    assert (5.0, None) == (pulse.heartbeat.elapsed(), pulse.heartbeat.progress)


def test_a_beat_after_the_page_is_gone_harms_nobody(tmp_path: Path, clock: FakeClock) -> None:
    page = BeatPage(tmp_path / "other", 1)
    context = RowContext(
        ClaimedRow(Claim(1, 1, 1), None),
        SlotActivity(clock, page, 0),
        Deadline.never(clock),
        started_at=0.0,
    )
    context.close()
    page.close()
    context.beat()


def test_it_is_not_cancelled_until_it_is(context: RowContext) -> None:
    assert (False, False) == (context.cancelled, context.lease_lost)
    context.cancel.cancel("shutdown")
    assert (True, False, "shutdown") == (
        context.cancelled,
        context.lease_lost,
        context.cancel.reason,
    )


def test_losing_the_lease_cancels_with_that_reason(context: RowContext) -> None:
    context.lose_lease()
    assert (True, True, "lease_lost") == (
        context.cancelled,
        context.lease_lost,
        context.cancel.reason,
    )


def test_everybody_finds_the_same_token(context: RowContext) -> None:
    found: list[CancelToken] = []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        found.append(context.cancel)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (8, 1) == (len(found), len(set(map(id, found))))


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), CancelledError("own")],
)
def test_whatever_is_raised_is_a_failure_tried_again_after_the_backoff(
    context: RowContext, error: BaseException
) -> None:
    settlement = settlement_for(context, error, RETRY)
    assert (context.claimed.claim, RowOutcome.FAILED, 40.0) == settlement[:3]
    assert describe_error(error) == settlement.error


@pytest.mark.parametrize("error", [PermanentError("never"), NeverThisError("never")])
def test_a_permanent_error_is_not_tried_again(context: RowContext, error: BaseException) -> None:
    context.cancel.cancel()
    settlement = settlement_for(context, error, RETRY)
    assert (RowOutcome.DEAD, "permanent", f"{type(error).__name__}: never") == (
        settlement.outcome,
        settlement.reason,
        settlement.error,
    )


def test_what_is_raised_after_being_told_to_stop_is_nobodys_fault(context: RowContext) -> None:
    context.cancel.cancel("shutdown")
    assert (RowOutcome.RELEASED, 0.0) == settlement_for(context, ValueError("in a hurry"), RETRY)[
        1:3
    ]
