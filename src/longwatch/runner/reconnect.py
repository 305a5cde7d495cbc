"""Decides when to reconnect to an event source.

Every connection that ends, or that cannot be made, is a failure with a reason and a wait. No
failure is final: attempts are unlimited.

Rules
    1. The runner always waits before it dials again: the base delay, doubled with each failure in a
       row, spread by ±25 %, never above the longest delay.
    2. A row of failures ends only when a connection was good for more than `STABLE_AFTER` seconds.
       Good: from the server's answer to the last byte that came. A server that answers and then
       stays silent, or that closes each connection at once, is therefore retried ever more slowly.
    3. `retry:` of the server replaces the base delay, from `SHORTEST_DELAY` to the longest delay.
    4. `Retry-After` lengthens a wait, up to the longest delay, and never shortens it.
    5. A failure that only a person can repair (401, 403, 404, 410 and the like) is slow: it waits
       for the longest delay at once.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import StrEnum

from longwatch.core.backoff import Backoff, BackoffPolicy, random_spread
from longwatch.core.error_text import describe_error

STABLE_AFTER = 60.0
SHORTEST_DELAY = 0.1
JITTER = 0.25
_RETRIED_STATUSES = frozenset({408, 425, 429})
_SERVER_ERRORS = range(500, 600)
_UNAUTHORIZED = frozenset({401, 403, 407})
_MAX_CAUSES = 10


class FailureReason(StrEnum):
    """Why a connection is made again; a closed set, the label of a metric."""

    NETWORK_ERROR = "network_error"
    SERVER_RESTART = "server_restart"
    IDLE_TIMEOUT = "idle_timeout"
    HTTP_STATUS = "http_status"
    BAD_CONTENT_TYPE = "bad_content_type"
    DNS = "dns"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a connection failed. `error` is empty for a clean end.

    `is_slow`: it is retried slowly. `needs_alert`: it is announced at once, not at the N-th failure
    in a row. `retry_after`: seconds that the server asked for.
    """

    reason: FailureReason
    error: str
    is_slow: bool = False
    needs_alert: bool = False
    retry_after: float | None = None


CLEAN_END = Failure(reason=FailureReason.SERVER_RESTART, error="")


class StreamFailedError(Exception):
    """A stream could not be opened or has broken; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class SubscribeToolMissingError(StreamFailedError):
    """An MCP server has no tool of the configured name; `tools` are those it has."""

    def __init__(self, tool: str, tools: tuple[str, ...]) -> None:
        error = f"expected a tool {tool}, the server has: {', '.join(tools) or 'none'}"
        super().__init__(Failure(reason=FailureReason.HTTP_STATUS, error=error, is_slow=True))
        self.tool = tool
        self.tools = tools


class StreamEndedError(Exception):
    """The server has asked not to be connected again (status 204)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The next attempt: after `delay` seconds; `attempt` counts the failures in a row, from 1."""

    delay: float
    attempt: int


class Reconnect:
    """Counts the failures of one source and decides how long to wait. One owner; never sleeps."""

    def __init__(
        self,
        *,
        initial: float,
        longest: float,
        stable_after: float = STABLE_AFTER,
        spread: Callable[[], float] = random_spread,
    ) -> None:
        self._shortest = min(initial, SHORTEST_DELAY)
        self._spread = spread
        policy = BackoffPolicy(
            initial=min(initial, longest), cap=longest, jitter=JITTER, stable_after=stable_after
        )
        self._backoff = Backoff(policy, spread=spread)

    def set_base(self, seconds: float) -> None:
        """Use the reconnection time that the server requested as the base delay, clamped."""
        policy = self._backoff.policy
        base = min(max(seconds, self._shortest), policy.cap)
        self._backoff.policy = replace(policy, initial=base)

    def failed(self, failure: Failure, *, good_for: float) -> Retry:
        """Record a failure after a connection that was good for `good_for` seconds; 0: none."""
        delay = self._backoff.failed(lasted=good_for)
        policy = self._backoff.policy
        if failure.is_slow:
            delay = min(policy.cap * (1 + JITTER * self._spread()), policy.cap)
        if failure.retry_after is not None:
            asked = failure.retry_after * (1 + JITTER * abs(self._spread()))
            delay = max(delay, min(asked, policy.cap))
        return Retry(delay, self._backoff.failures)


def failure_of_status(status: int, *, retry_after: str | None, now: float) -> Failure:
    """Return the failure for a status other than 200. `now` is wall time, for a date in
    Retry-After.

    Timeouts, overload and faults of the server (408, 425, 429, 5xx) are temporary. Any other status
    stays until a person repairs it.
    """
    is_passing = status in _RETRIED_STATUSES or status in _SERVER_ERRORS
    cure = "its headers or token_file" if status in _UNAUTHORIZED else "its url and kind"
    return Failure(
        reason=FailureReason.HTTP_STATUS,
        error=f"expected status 200, got {status}" + ("" if is_passing else f"; check {cure}"),
        is_slow=not is_passing,
        needs_alert=not is_passing,
        retry_after=parse_retry_after(retry_after, now=now) if is_passing else None,
    )


def parse_retry_after(value: str | None, *, now: float) -> float | None:
    """Return the seconds in a Retry-After header, which is a number or a date; None without one."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        return max(parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError, OSError):
        return None


def failure_of_error(error: BaseException) -> Failure:
    """Return the failure for an exception, by its causes, because client libraries wrap the errors
    of the operating system.
    """
    if isinstance(error, StreamFailedError):
        return error.failure
    causes = list(_causes(error))
    reason = _reason_of(causes)
    if reason is FailureReason.IDLE_TIMEOUT:
        return Failure(reason=reason, error="no byte came within the read timeout")
    return Failure(reason=reason, error=describe_error(causes[0]))


def _reason_of(causes: list[BaseException]) -> FailureReason:
    for kind, reason in (
        (socket.gaierror, FailureReason.DNS),
        (ssl.SSLError, FailureReason.TLS),
        (TimeoutError, FailureReason.IDLE_TIMEOUT),
    ):
        if any(isinstance(cause, kind) for cause in causes):
            return reason
    return FailureReason.NETWORK_ERROR


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes; of a group the first."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__  # some libraries raise theirs "from None"
