"""When a lost connection to an event source is made again."""

from __future__ import annotations

import socket
import ssl
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.runner.reconnect import (
    CLEAN_END,
    Failure,
    FailureReason,
    Reconnect,
    StreamFailedError,
    failure_of_error,
    failure_of_status,
    parse_retry_after,
)

BROKEN = Failure(reason=FailureReason.NETWORK_ERROR, error="reset")
NOW = 1_800_000_000.0


def delays(reconnect: Reconnect, count: int, failure: Failure = BROKEN) -> list[float]:
    return [reconnect.failed(failure, good_for=0.0).delay for _ in range(count)]


def steady(*, initial: float = 1.0, longest: float = 60.0) -> Reconnect:
    return Reconnect(initial=initial, longest=longest, spread=lambda: 0.0)


def test_waits_double_from_a_second_to_a_minute() -> None:
    """Without jitter the waits are 1, 2, 4 … 60 seconds, also after clean ends."""
    expected = [1, 2, 4, 8, 16, 32, 60, 60]
    assert expected == delays(steady(), 8) == delays(steady(), 8, CLEAN_END)


@given(
    spread=st.floats(min_value=-1, max_value=1),
    retry=st.none() | st.floats(min_value=0, max_value=1e9),
    retry_after=st.none() | st.floats(min_value=0, max_value=1e9),
    is_slow=st.booleans(),
)
def test_no_wait_is_zero_or_above_a_minute(
    spread: float, retry: float | None, retry_after: float | None, *, is_slow: bool
) -> None:
    """Whatever a server asks for, the runner waits, and never longer than the longest delay."""
    reconnect = Reconnect(initial=1.0, longest=60.0, spread=lambda: spread)
    if retry is not None:
        reconnect.set_base(retry)
    failure = Failure(
        reason=FailureReason.HTTP_STATUS, error="", is_slow=is_slow, retry_after=retry_after
    )
    assert all(0.07 < delay <= 60.0 for delay in delays(reconnect, 10, failure))


@pytest.mark.parametrize(("spread", "expected"), [(-1.0, 0.75), (1.0, 1.25)])
def test_jitter_is_a_quarter_to_each_side(spread: float, expected: float) -> None:
    reconnect = Reconnect(initial=1.0, longest=60.0, spread=lambda: spread)
    assert [expected] == delays(reconnect, 1)


def test_only_a_connection_good_for_a_minute_ends_the_row() -> None:
    reconnect = steady()
    delays(reconnect, 3)
    after_a_minute = reconnect.failed(BROKEN, good_for=60.0)
    assert (8.0, 4) == (after_a_minute.delay, after_a_minute.attempt)
    after_more = reconnect.failed(BROKEN, good_for=60.1)
    assert (1.0, 1) == (after_more.delay, after_more.attempt)


@pytest.mark.parametrize(
    ("asked", "expected"), [(3.0, [3, 6, 12]), (0.0, [0.1, 0.2, 0.4]), (1e6, [60, 60, 60])]
)
def test_the_retry_field_sets_the_base_within_bounds(asked: float, expected: list[float]) -> None:
    reconnect = steady()
    reconnect.set_base(asked)
    assert expected == delays(reconnect, 3)


def test_retry_after_lengthens_a_wait_and_never_shortens_it() -> None:
    asked = Failure(reason=FailureReason.HTTP_STATUS, error="", retry_after=5.0)
    assert [5, 5, 5, 8] == delays(steady(), 4, asked)


def test_a_slow_failure_waits_for_the_longest_delay_at_once() -> None:
    slow = Failure(reason=FailureReason.HTTP_STATUS, error="", is_slow=True)
    assert [60, 60] == delays(steady(), 2, slow)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
def test_statuses_that_pass_are_retried_with_retry_after(status: int) -> None:
    failure = failure_of_status(status, retry_after="7", now=NOW)
    assert (False, False, 7.0) == (failure.is_slow, failure.needs_alert, failure.retry_after)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 201, 304])
def test_other_statuses_are_retried_slowly_with_an_alert(status: int) -> None:
    failure = failure_of_status(status, retry_after="7", now=NOW)
    assert (True, True, None) == (failure.is_slow, failure.needs_alert, failure.retry_after)
    cure = "its headers or token_file" if status in {401, 403} else "its url and kind"
    assert f"expected status 200, got {status}; check {cure}" == failure.error


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120.0),
        (" 3 ", 3.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        ("-1", None),
        ("soon", None),
        ("٣", None),
        ("", None),
        (None, None),
        ("9" * 500, 9_999_999_999.0),
        ("Mon, 99 Foo 99999 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, expected: float | None) -> None:
    assert expected == parse_retry_after(value, now=NOW)


def wrapped(cause: BaseException) -> Exception:
    error = RuntimeError("a client library")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (socket.gaierror(-2, "unknown name"), FailureReason.DNS),
        (ssl.SSLCertVerificationError("self-signed"), FailureReason.TLS),
        (TimeoutError(), FailureReason.IDLE_TIMEOUT),
        (ConnectionResetError(104, "reset"), FailureReason.NETWORK_ERROR),
        (ValueError("anything"), FailureReason.NETWORK_ERROR),
    ],
)
def test_the_reason_is_found_among_the_causes(error: Exception, expected: FailureReason) -> None:
    groups = ExceptionGroup("tasks", [ExceptionGroup("more", [wrapped(error)])])
    for each in (error, wrapped(error), groups):
        assert expected == failure_of_error(each).reason


def test_a_failed_stream_keeps_its_failure() -> None:
    assert BROKEN is failure_of_error(StreamFailedError(BROKEN))
