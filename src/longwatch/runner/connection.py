"""The connection to one event source: dial, read, take, and dial again.

connecting ──the server answers──► connected ──it ends or fails──► waiting ──the delay──► connecting
     │ └─────────────it cannot be made──────────────────────────────▲
     └──204──► ended

Two tasks share a connection. The reader collects items into the next batch. The other one passes
batches to the intake and waits for each commit. At most one batch is read ahead: when it is full
the reader stops, the socket fills, and the server has to wait.

Invariants
    1. Items that were read before a stream ended or broke are stored before the next dial.
    2. Items that the intake could not store are not lost. The server sends items with an id again,
       from the stored cursor. It cannot send items without an id again: the connection keeps them,
       and stores them before it dials.
    3. Each reconnect emits one SseConnectionFailed. Each established connection emits one
       SseConnectionClosed, also when the runner stops.
    4. Only a cancel ends `run`. A fault of the server, of the network or of the store does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

from longwatch.core.backoff import random_spread
from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.runner import (
    EventSourceEnded,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
    StreamGapped,
    SubscribeToolMissing,
)
from longwatch.core.extras import install_command
from longwatch.errors import UsageError
from longwatch.runner.alert_throttle import AlertThrottle
from longwatch.runner.policy import RunnerPolicy, SourceKind, SourceSpec
from longwatch.runner.read_ahead import ReadAhead
from longwatch.runner.reconnect import (
    CLEAN_END,
    STABLE_AFTER,
    Failure,
    FailureReason,
    Reconnect,
    StreamEndedError,
    StreamFailedError,
    SubscribeToolMissingError,
    failure_of_error,
)
from longwatch.runner.seams import EventIntake, EventStream, StreamBatch, StreamItem

T = TypeVar("T")


class ConnectionPhase(StrEnum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionState:
    """The state of a connection. `since` is wall time. `error` is that of the last failure."""

    phase: ConnectionPhase
    since: float
    reconnects: int = 0
    error: str = ""


class StreamOpener(Protocol):
    """Opens the stream of a source from the event after `cursor` on."""

    def __call__(
        self, spec: SourceSpec, policy: RunnerPolicy, *, cursor: str, clock: Clock
    ) -> AbstractAsyncContextManager[EventStream]: ...


class SourceConnection:
    """Keeps one event source connected, and passes its events to the intake.

    Used on an event loop. `start_delay` staggers the first dials of many sources. `report` is
    called with each new state. The constructor raises UsageError if the packages for this kind of
    source are not installed.
    """

    def __init__(  # noqa: PLR0913 - a source and everything that its connection uses
        self,
        spec: SourceSpec,
        policy: RunnerPolicy,
        intake: EventIntake,
        *,
        clock: Clock,
        events: Events,
        jitter: Callable[[], float] = random_spread,
        report: Callable[[ConnectionState], None] = lambda _: None,
        start_delay: float = 0.0,
        stable_after: float = STABLE_AFTER,
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._intake = intake
        self._clock = clock
        self._events = events
        self._report = report
        self._start_delay = start_delay
        self._stable_after = stable_after
        self._open = load_opener(spec.kind)
        self._reconnect = Reconnect(
            initial=policy.reconnect_initial_delay,
            longest=policy.reconnect_max_delay,
            stable_after=stable_after,
            spread=jitter,
        )
        self._throttle = AlertThrottle(spec.name, alert_after=policy.alert_after_failures)
        self._unstored: list[StreamItem] = []
        """Items without an id that the intake could not store."""
        self._established_at: float | None = None
        self._last_byte_at = 0.0
        self._ended_at: float | None = None
        self._is_tool_missing = False
        self.state = ConnectionState(phase=ConnectionPhase.CONNECTING, since=clock.wall())

    async def run(self) -> None:
        """Stay connected until cancelled. After a 204 it connects no more, and waits to be
        cancelled.
        """
        if self._start_delay > 0:
            await self._clock.sleep(self._start_delay)
        while (failure := await self._connect()) is not None:
            await self._wait_after(failure)
        self._set_phase(ConnectionPhase.ENDED)
        self._events.emit(EventSourceEnded(cluster=self._spec.name))
        await asyncio.get_running_loop().create_future()

    # --- one connection ---

    async def _connect(self) -> Failure | None:
        """Make a connection and use it until it ends. Return why it ended; None for a 204."""
        self._set_phase(ConnectionPhase.CONNECTING)
        failure: Failure | None = None
        try:
            failure = await self._use_stream()
        except StreamEndedError:
            return None
        except SubscribeToolMissingError as error:
            self._report_missing_tool(error)
            failure = error.failure
        except Exception as error:  # noqa: BLE001 - whatever fails, the source is connected again
            failure = failure_of_error(error)
        finally:
            self._close(failure)
        return failure

    async def _use_stream(self) -> Failure:
        cursor = await _stored(self._intake.cursor(self._spec.name))
        if self._unstored:
            await _stored(self._intake.take(self._spec.name, self._unstored, cursor=cursor))
            self._unstored = []
        async with self._open(self._spec, self._policy, cursor=cursor, clock=self._clock) as stream:
            self._establish()
            await self._pump(stream, ReadAhead(cursor))
        return CLEAN_END

    async def _pump(self, stream: EventStream, ahead: ReadAhead) -> None:
        """Pass the items of the stream to the intake until it ends. Raises the error of the stream
        or of the intake.
        """
        reader = asyncio.create_task(self._fill(stream, ahead))
        try:
            while (batch := await ahead.next_batch()) is not None:
                await self._take(batch, ahead)
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _fill(self, stream: EventStream, ahead: ReadAhead) -> None:
        try:
            while (batch := await stream.read()) is not None:
                self._note_bytes()
                if not ahead.add(batch):
                    await ahead.room()
            self._note_bytes()
        finally:
            if stream.retry is not None:
                self._reconnect.set_base(stream.retry)
            ahead.end()

    async def _take(self, batch: StreamBatch, ahead: ReadAhead) -> None:
        try:
            await _stored(self._intake.take(self._spec.name, batch.items, cursor=batch.cursor))
        except StreamFailedError:
            left = [*batch.items, *ahead.items]
            self._unstored = [item for item in left if item.id is None]
            raise
        if batch.dropped:
            await _stored(self._intake.report_oversize(self._spec.name, batch.dropped))

    # --- state ---

    def _establish(self) -> None:
        now = self._clock.monotonic()
        downtime = 0.0 if self._ended_at is None else now - self._ended_at
        if self._spec.kind is SourceKind.MCP and self._ended_at is not None:
            gap = now - self._last_byte_at
            self._events.emit(StreamGapped(cluster=self._spec.name, seconds=gap))
        self._established_at = self._last_byte_at = now
        self._is_tool_missing = False
        self._set_phase(ConnectionPhase.CONNECTED, error="")
        self._events.emit(SseConnectionEstablished(cluster=self._spec.name, downtime=downtime))

    def _note_bytes(self) -> None:
        """Record that bytes arrived. An announced outage ends once the connection is stable."""
        self._last_byte_at = self._clock.monotonic()
        if self._throttle.is_degraded:
            self._end_outage_if_stable()

    def _end_outage_if_stable(self) -> None:
        assert self._established_at is not None
        if self._last_byte_at - self._established_at > self._stable_after:
            recovered = self._throttle.succeeded(now=self._established_at)
            if recovered is not None:
                self._events.emit(recovered)

    def _close(self, failure: Failure | None) -> None:
        """Record that the connection has ended, if it was established."""
        if self._established_at is None:
            return
        self._end_outage_if_stable()
        self._ended_at = self._clock.monotonic()
        self._events.emit(
            SseConnectionClosed(
                cluster=self._spec.name,
                error=failure.error if failure is not None else "",
                duration_seconds=self._ended_at - self._established_at,
            )
        )

    async def _wait_after(self, failure: Failure) -> None:
        good_for = (
            0.0 if self._established_at is None else self._last_byte_at - self._established_at
        )
        self._established_at = None
        retry = self._reconnect.failed(failure, good_for=good_for)
        error = failure.error or "the server has ended the stream"
        self._set_phase(ConnectionPhase.WAITING, error=error, reconnects=1)
        self._events.emit(
            SseConnectionFailed(
                cluster=self._spec.name,
                error=error,
                reason=failure.reason.value,
                retry_in=retry.delay,
                attempt=retry.attempt,
            )
        )
        self._count_failure(failure, error)
        await self._clock.sleep(retry.delay)

    def _count_failure(self, failure: Failure, error: str) -> None:
        now = self._clock.monotonic()
        degraded = self._throttle.failed(now=now, error=error, at_once=failure.needs_alert)
        if degraded is not None:
            self._events.emit(degraded)

    def _report_missing_tool(self, error: SubscribeToolMissingError) -> None:
        """Emit that the tool is missing, once until it exists again."""
        if not self._is_tool_missing:
            self._is_tool_missing = True
            self._events.emit(
                SubscribeToolMissing(cluster=self._spec.name, tool=error.tool, tools=error.tools)
            )

    def _set_phase(
        self, phase: ConnectionPhase, *, error: str | None = None, reconnects: int = 0
    ) -> None:
        self.state = replace(
            self.state,
            phase=phase,
            since=self._clock.wall(),
            reconnects=self.state.reconnects + reconnects,
            error=self.state.error if error is None else error,
        )
        self._report(self.state)


async def _stored(call: Awaitable[T]) -> T:
    """Return the result of a call to the intake. Its error is not a fault of the server."""
    try:
        return await call
    except Exception as error:
        failure = Failure(reason=FailureReason.NETWORK_ERROR, error=describe_error(error))
        raise StreamFailedError(failure) from error


def load_opener(kind: SourceKind) -> StreamOpener:
    """Return the function that opens streams of this kind. Raises UsageError if its packages are
    missing.
    """
    extra = "mcp" if kind is SourceKind.MCP else "runner"
    try:
        if kind is SourceKind.MCP:
            from longwatch.runner.mcp_stream import open_mcp  # noqa: PLC0415 - an optional package

            return open_mcp
        from longwatch.runner.sse_stream import open_sse  # noqa: PLC0415 - an optional package
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a source of kind {kind} needs the package {error.name}; run: {install_command(extra)}"
        ) from None
    return open_sse
