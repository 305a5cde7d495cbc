"""The watchdog of a worker's attempts: beats for attempts within their limits, and abandons those
that have timed out.

It has one thread. While attempts run, the thread wakes every second and at every deadline. An
attempt within its limits gets a beat, so its slot counts as alive while this thread runs, whatever
its code does. An attempt that is past its deadline, or has not called `beat` for
`progress_timeout_seconds`, is abandoned: the watchdog decides its settlement, settles it in the
store at once, which opens the next attempt, and cancels the code. Code that does not stop gets no
more beats: its slot is out of service, and the rule of the process watchdog applies.

The thread computes the end of each wait anew, so `host.periodic` with its fixed interval does not
fit. The watchdog makes no heartbeats in the store: the engine's lease renewer renews all attempts
of a worker in one statement.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.flow import AttemptAbandoned
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.policy import EngineContext
from longwatch.engine.source_call import SourceCall
from longwatch.flow.attempt import AttemptEndCause
from longwatch.flow.context import FlowContext
from longwatch.host.background_thread import BackgroundThread

BEAT_INTERVAL = 1.0
_SETTLE_WAIT = 0.5
"""Seconds to wait for the store before the code is cancelled anyway."""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """A running attempt."""

    work: RowContext
    context: FlowContext
    progress_timeout: float | None

    def expiry(self) -> tuple[float, AttemptEndCause]:
        """When the attempt times out, on the clock of its deadline, and the cause."""
        deadline = self.context.deadline.at
        if self.progress_timeout is None:
            return deadline, AttemptEndCause.DEADLINE
        stalled = self.context.progressed_at + self.progress_timeout
        return (
            (stalled, AttemptEndCause.STALLED)
            if stalled < deadline
            else (deadline, AttemptEndCause.DEADLINE)
        )


class AttemptWatchdog:
    """Watches the running attempts of a worker. `settle` settles attempts in the store and returns
    for each whether its claim still held. Thread-safe.
    """

    def __init__(
        self, settle: Callable[[list[Settlement]], list[bool]], engine_context: EngineContext
    ) -> None:
        self._settle = settle
        self._clock: Clock = engine_context.clock
        self._events: Events = engine_context.events
        self._settle_call = SourceCall("abandon", engine_context)
        self._running: dict[int, RunningAttempt] = {}
        self._unsettled: deque[RunningAttempt] = deque()
        self._settle_thread: BackgroundThread | None = None
        self._lock = threading.Lock()
        self._wakeup = Wakeup()
        self._is_stopping = False
        self._is_idle = False
        self._was_busy = False
        self._thread = BackgroundThread(
            self._run, name=f"{engine_context.name}-attempt-watchdog", report_errors=True
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_stopping = True
            self._wakeup.set()

    def add(self, running: RunningAttempt) -> None:
        with self._lock:
            self._running[running.work.claimed.claim.seq] = running
            self._was_busy = True
        if self._is_idle or running.expiry()[0] < self._clock.monotonic() + BEAT_INTERVAL:
            self._wakeup.set()

    def remove(self, running: RunningAttempt) -> None:
        with self._lock:
            self._running.pop(running.work.claimed.claim.seq, None)

    # --- its thread ---

    def _run(self) -> None:
        while not self._is_stopping:
            self._clock.wait(self._wakeup, self._next_wait())
            self._wakeup.clear()
            self._check()

    def _next_wait(self) -> float | None:
        """Seconds until the next check; None, for ever, after a check in which nothing ran. So
        `add` rarely has to wake the thread.
        """
        now = self._clock.monotonic()
        with self._lock:
            expiries = [
                each.expiry()[0]
                for each in self._running.values()
                if each.work.forced_settlement is None
            ]
            self._is_idle = not (expiries or self._unsettled or self._was_busy)
            self._was_busy = False
        if self._is_idle:
            return None
        waits = [BEAT_INTERVAL, *(expires_at - now for expires_at in expiries)]
        return max(min(waits), self._settle_call.retry_in if self._unsettled else 0.0)

    def _check(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            running = [
                each for each in self._running.values() if each.work.forced_settlement is None
            ]
        for each in running:
            expires_at, cause = each.expiry()
            if now >= expires_at:
                self._abandon(each, cause)
            else:
                each.work.beat()
        if self._unsettled:
            self._settle_soon()

    def _abandon(self, running: RunningAttempt, cause: AttemptEndCause) -> None:
        """Abandon an attempt: from here on its result does not count.

        Its code is cancelled after the store has settled it, or does not reply in time. Otherwise
        code that stops at once would be settled twice.
        """
        item = running.work.claimed.item
        limit = running.progress_timeout if cause is AttemptEndCause.STALLED else item.abandon_after
        error = f"{_ERROR_TEXTS[cause]} {limit:g} seconds"
        ruling = running.work.forced_settlement = Settlement(
            running.work.claimed.claim,
            RowOutcome.FAILED,
            reason=str(cause),
            error=error,
            seconds=self._clock.monotonic() - running.work.started_at,
        )
        running.work.forced_settlement = ruling._replace(
            error=error + running.context.diagnostics()
        )
        self._unsettled.append(running)
        self._settle_soon()
        running.work.cancel.cancel(str(cause))

    def _settle_soon(self) -> None:
        """Settle in a thread of its own: a store that does not reply must not delay the beats and
        timeouts of other attempts.
        """
        if self._settle_thread is None or self._settle_thread.done.is_set():
            self._settle_thread = BackgroundThread(
                self._settle_abandoned, name="longwatch-attempt-settle", report_errors=True
            )
            self._settle_thread.start(inline_fallback=True)
        self._settle_thread.done.block(_SETTLE_WAIT)

    def _settle_abandoned(self) -> None:
        """Settle abandoned attempts, with retries. If the slot settled first, its result counts."""
        while self._unsettled and not self._is_stopping:
            running = self._unsettled[0]
            ruling = running.work.forced_settlement
            assert ruling is not None
            settled = self._settle_call.run(lambda ruling=ruling: self._settle([ruling]))  # type: ignore[misc]
            if settled is None:
                return
            self._unsettled.popleft()
            running.work.settled = True
            running.work.lease_lost = True
            if settled[0]:
                item = running.work.claimed.item
                self._events.emit(
                    AttemptAbandoned(
                        execution=item.id, node=item.node, attempt=item.number, cause=ruling.reason
                    )
                )


_ERROR_TEXTS = {
    AttemptEndCause.DEADLINE: "it took longer than",
    AttemptEndCause.STALLED: "it did not call context.beat() for",
}
