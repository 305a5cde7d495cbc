"""Dispatch: claims the queued stream events of all sources and runs the agent for each.

An engine claims from the mailboxes of the sources, oldest first and in turn, within a cap for each
source and one for all. Each claimed event goes through these steps, in the thread of its slot:

    found       the event is read by the id of its message
    expired     it has had no run and is too old: it is settled as `expired` and never runs
    in flight   a stop, a kill and a cancel reach its run from here on; after a kill it is released
    admitted    the work breaker lets it start, or it is released
    begun       its run is written, if the claim still holds and no cancel of an earlier run is left
    run         the agent runs to its end (`agent_run.py`)
    settled     how the run ended, the message and the outcome of the event, in one transaction

How a run that ended is settled is in `run_end.py`. A lost lease ends the process and its run at
once; the event belongs to another runner then.

A stop, under one deadline
    1. No more events are claimed. Runs go on until shortly before the deadline.
    2. Runs that are left get SIGTERM, their grace, SIGKILL. They end as `shutdown`.
    3. Their events go back to the queue, no attempt spent, in the last transactions.

Failure cases
    - The store does not answer before the run: the event is released, nothing was started. After
      the run: the engine keeps the settlement and makes it when the store is back.
    - The process of the runner dies: its guardian kills the agents. The sweep of any runner blames
      the event with a crash and releases it, or gives it up. The run is ended as `lease_lost`.
    - The guardian dies: its agents are killed, and the next run starts another guardian. One of
      these agents may have killed it, so each of their events has crashed once more. An event that
      is a suspect by that (`store.blame`) runs alone: the guilty one is dead-lettered as `poison`,
      the others succeed. A guardian that cannot be started blames no event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Event, Events
from longwatch.core.events.runner import QueuedEventExpired
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.error_policy import failure_settlement
from longwatch.errors import Release, StoreError
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.host.writer_thread import WriterThread
from longwatch.mailbox.many_mailboxes import ManyMailboxes
from longwatch.mailbox.records import new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.runner import run_end
from longwatch.runner.agent_run import AgentRun, RunHost
from longwatch.runner.alert_throttle import AlertThrottle
from longwatch.runner.event_queue import mailbox_limits
from longwatch.runner.policy import AgentSpec, RunnerPolicy, SourceSpec
from longwatch.runner.run_end import EventOutcome, RunEnd, RunSettlement, RunStatus
from longwatch.runner.run_retention import remove_old_runs
from longwatch.runner.run_store import (
    CANCEL_CHANNEL,
    CancelledEventError,
    NewRun,
    QueuedEvent,
    RunStore,
)
from longwatch.runner.survivors import end_survivors
from longwatch.runner.work_breaker import WorkBreaker
from longwatch.runner.workspace import Workspace
from longwatch.store.database import Database

LEASE_SECONDS = 120.0
"""A store that is away for less than 0.8 of this costs no agent its run."""
CANCEL_POLL_INTERVAL = 5.0
"""Seconds between two polls for cancel requests, because a notification may get lost."""
MAX_RETRY_DELAY = 900.0
_STORE_RETRY_DELAY = 1.0
_GUARDIAN_RETRY_DELAY = 1.0
_SETTLE_SECONDS = 1.0
"""Seconds at the end of a stop that are reserved for the store, after the last process is gone."""
_EXCLUSIVE_SECONDS = 600.0
"""How long a suspect waits for the other runs to end, if these have no timeout. With one, it waits
for as long as a run may last: otherwise it would be put off for as long as events come.
"""
_MAX_END_SHARE = 1 / 3
"""The largest part of the time of a stop that is spent on ending runs."""


class RunInfo(NamedTuple):
    """A run in progress. `pid` None: its process is not spawned yet."""

    run_id: str
    cluster: str
    pid: int | None


class Dispatcher(Service):
    """Runs the agent for the queued events of these sources.

    `start` kills survivors of an earlier runner and begins to claim. `drain` stops claiming. `stop`
    waits for the runs, and shortly before its deadline ends those that are left. Their events go
    back to the queue. `interrupted` counts the runs that a stop has ended.

    The caller owns `loop` and `guardian`: it starts them before and stops them after this.
    """

    def __init__(  # noqa: PLR0913 - the sources, the agent and the services that run it
        self,
        database: Database,
        sources: Sequence[SourceSpec],
        agent: AgentSpec,
        policy: RunnerPolicy,
        *,
        clock: Clock,
        events: Events,
        breaker: WorkBreaker,
        loop: EventLoopThread,
        guardian: GuardianClient,
    ) -> None:
        super().__init__(name="dispatch", clock=clock)
        self.store = RunStore(database)
        self.interrupted = 0
        self._database = database
        self._sources = {source.name: source for source in sources}
        self._policy = policy
        self._events = events
        self._breaker = breaker
        self._host = RunHost(
            agent=_with_absolute_paths(agent),
            policy=policy,
            loop=loop,
            guardian=guardian,
            clock=clock,
            events=events,
            writer_thread=WriterThread("longwatch-agent-output"),
            record_pid=lambda run_id, pid, start: self.store.record_pid(
                run_id, pid=pid, start=start
            ),
        )
        self._guardian_keeper = _GuardianKeeper(guardian)
        self._runs: dict[str, AgentRun] = {}
        self._has_ended_runs = False
        """Whether a stop has ended all runs, so that no other run begins."""
        self._lock = threading.Lock()
        self._run_ended = Wakeup()
        self._alerts = AlertThrottle("", alert_after=policy.alert_after_failures)
        self._stop_deadline = Deadline.never(clock)
        self.engine = self._make_engine()
        self._canceller = Periodic(
            self._cancel_requested,
            Cadence(interval=CANCEL_POLL_INTERVAL, jitter=0.2),
            name="runner-cancel",
            clock=clock,
            events=events,
        )
        self._sweeper = Periodic(
            self.sweep,
            Cadence(interval=policy.queue_sweep_interval, jitter=0.2, immediately=False),
            name="runner-runs-sweeper",
            clock=clock,
            events=events,
        )
        self._stop_listening: Callable[[], None] = lambda: None

    @property
    def in_own_thread(self) -> bool:
        return (
            self.engine.in_own_thread
            or self._canceller.in_own_thread
            or self._sweeper.in_own_thread
        )

    def in_flight(self) -> list[RunInfo]:
        """The runs in progress in this process, and those that are about to begin."""
        with self._lock:
            runs = list(self._runs.values())
        return [RunInfo(each.run.id, each.run.source, each.pid) for each in runs]

    def cancel(self, run_id: str) -> bool:
        """End a run of this or another process, and dead-letter its event as `cancelled`. Return
        False if there is no such run, or it has ended. Does not wait for the end. Blocks on the
        store if the run is in another process.
        """
        with self._lock:
            run = self._runs.get(run_id)
        if run is None:
            return self.store.request_cancel(run_id)
        run.cancel(run_end.CANCELLED)
        return True

    def drain(self) -> None:
        """Claim no more events. Runs in progress go on."""
        self.engine.drain()

    def resume(self) -> None:
        """Claim events again after a drain."""
        self._has_ended_runs = False
        self.engine.resume()

    def kill(self) -> None:
        """Kill the runs in progress. Their events go back to the queue. During a drain no other
        run begins. Does not wait for the end.
        """
        self._end_runs(grace=0.0)

    def sweep(self) -> None:
        """End runs that were left open, and remove old ones. Blocks on the store and the disk."""
        self.store.end_lost_runs()
        remove_old_runs(
            self.store, self._host.agent.workspace, retention=self._policy.run_retention
        )

    # --- the service ---

    def _start(self) -> None:
        self.interrupted, self._has_ended_runs = 0, False
        self._stop_deadline = Deadline.never(self._clock)
        end_survivors(self.store, self._events)
        wakeup = Wakeup()
        wakeup.subscribe(self._canceller.wake)
        self._stop_listening = self._database.listen(CANCEL_CHANNEL, wakeup)
        try:
            self.engine.start()
            self._canceller.start()
            self._sweeper.start()
        except BaseException:
            self._stop(Deadline.after(_SETTLE_SECONDS, self._clock))
            raise

    def _stop(self, deadline: Deadline) -> bool:
        self._stop_deadline = deadline
        self.engine.drain()
        left = deadline.remaining()
        if left is not None:
            reserve = min(self._host.agent.stop_grace + _SETTLE_SECONDS, left * _MAX_END_SHARE)
            self._wait_idle(Deadline(deadline.at - reserve, self._clock))
            self._end_runs(grace=self._stop_grace())
        stopped = [
            each.stop(deadline=deadline) for each in (self.engine, self._canceller, self._sweeper)
        ]
        self._stop_listening()
        return all(stopped)

    def _wait_idle(self, deadline: Deadline) -> None:
        """Wait until no run is in progress, or the deadline has passed."""
        while self._runs and not deadline.expired:
            self._run_ended.clear()
            if self._runs:
                self._clock.wait(self._run_ended, deadline.remaining())

    def _end_runs(self, *, grace: float) -> None:
        with self._lock:
            self._has_ended_runs = self.engine.draining
            runs = list(self._runs.values())
        for run in runs:
            run.cancel(run_end.SHUTDOWN, grace=grace)

    def _stop_grace(self) -> float:
        """Return the seconds between SIGTERM and SIGKILL of an agent; fewer in a short stop."""
        left, grace = self._stop_deadline.remaining(), self._host.agent.stop_grace
        return grace if left is None else min(grace, left / 2)

    def _make_engine(self) -> Engine:
        policy = self._policy
        limits = mailbox_limits(policy)
        mailboxes = ManyMailboxes(
            [
                SqlBackend(self._database, source.mailbox, limits=limits)
                for source in self._sources.values()
            ],
            max_running=policy.max_concurrent_per_source,
            admit=self._breaker.admit,
            on_settle=self.store.settle,
            on_given_up=self.store.give_up,
        )
        engine_policy = EnginePolicy(
            slots=policy.max_concurrent_agents,
            lease=LeasePolicy(LEASE_SECONDS),
            retry=self._retry_policy,
            max_prefetch=0,
            exclusive_timeout=(policy.agent_timeout or _EXCLUSIVE_SECONDS)
            + self._host.agent.stop_grace
            + _SETTLE_SECONDS,
        )
        return Engine(
            mailboxes,
            self._run_event,
            policy=engine_policy,
            name="runner",
            clock=self._clock,
            events=self._events,
        )

    @property
    def _retry_policy(self) -> BackoffPolicy:
        initial = self._policy.retry_delay
        return BackoffPolicy(
            initial=initial, factor=2.0, cap=max(initial, MAX_RETRY_DELAY), jitter=0.25
        )

    def _cancel_requested(self) -> None:
        """Cancel the runs of this process for which another process has requested it."""
        with self._lock:
            runs = dict(self._runs)
        if runs:
            for run_id in self.store.cancel_requests():
                if run_id in runs:
                    runs[run_id].cancel(run_end.CANCELLED)

    # --- one event, in the thread of its slot ---

    def _run_event(self, claimed: ClaimedRow, context: RowContext) -> Settlement:
        event_id = claimed.message_id
        try:
            event = self.store.find_event(event_id)
            if event is None:
                return _dead(claimed, RunSettlement(event=event_id), "permanent", _NO_EVENT)
            if self._is_expired(event):
                return self._expire(claimed, event_id, event)
            run = self._begin(claimed, event_id, event)
        except CancelledEventError as error:
            return _dead(claimed, RunSettlement(event=event_id), run_end.CANCELLED, str(error))
        except StoreError as error:
            raise Release(delay=_STORE_RETRY_DELAY, reason=describe_error(error)) from None
        return self._run_agent(run, context)

    def _is_expired(self, event: QueuedEvent) -> bool:
        """Return whether the event has waited too long for its first run."""
        max_age = self._policy.max_queue_age
        return max_age is not None and not event.recent_runs and event.age > max_age

    def _expire(self, claimed: ClaimedRow, event_id: str, event: QueuedEvent) -> Settlement:
        self._events.emit(
            QueuedEventExpired(cluster=event.source, event_id=event_id, age=event.age)
        )
        decided = RunSettlement(event=event_id, outcome=EventOutcome.EXPIRED)
        return _settlement(claimed, RowOutcome.DONE, decided)

    def _begin(self, claimed: ClaimedRow, event_id: str, event: QueuedEvent) -> AgentRun:
        """Write the run. Raises Release if it must not start now."""
        run_id = new_id()
        new = NewRun(
            id=run_id,
            event=event_id,
            source=event.source,
            attempt=event.runs + 1,
            workspace=str(Workspace(self._host.agent.workspace, run_id).path),
        )
        run = AgentRun(new, event, self._sources.get(event.source), self._host)
        self._add(run)
        try:
            self._write(new, claimed)
        except BaseException:
            self._breaker.record(run_id, success=None)  # so that another trial may start
            self._remove(run)
            raise
        return run

    def _write(self, run: NewRun, claimed: ClaimedRow) -> None:
        if not self._breaker.try_start(run.id):
            raise Release(reason="the work breaker is open")
        if not self.store.begin(run, claimed.claim):
            raise Release(reason="the lease of the event is lost")

    def _add(self, run: AgentRun) -> None:
        """Let `in_flight`, `cancel`, a stop and a kill see the run."""
        with self._lock:
            if self._has_ended_runs:
                raise Release(reason="the runner is stopping")
            self._runs[run.run.id] = run

    def _remove(self, run: AgentRun) -> None:
        with self._lock:
            del self._runs[run.run.id]
        self._run_ended.set()

    def _run_agent(self, run: AgentRun, context: RowContext) -> Settlement:
        unsubscribe = context.cancel.on_cancel(lambda: self._interrupt(run, context))
        try:
            guardian_pid = self._guardian_keeper.ensure_running()
            end = run.execute(context.beat)
        finally:
            unsubscribe()
            self._remove(run)
        if run.was_guardian_lost:
            self._guardian_keeper.report_lost(guardian_pid)
        self._breaker.record(run.run.id, success=end.is_success)
        self._count_end(end)
        return self._settle(run, end, context)

    def _count_end(self, end: RunEnd) -> None:
        alert: Event | None = None
        with self._lock:
            self.interrupted += end.cause == run_end.SHUTDOWN
            now = self._clock.monotonic()
            if end.is_success:
                alert = self._alerts.succeeded(now=now)
            elif end.is_success is False:
                alert = self._alerts.failed(now=now, error=f"{end.cause}: {end.error}")
        if alert is not None:
            self._events.emit(alert)

    def _interrupt(self, run: AgentRun, context: RowContext) -> None:
        """End a run whose row the engine has cancelled: its lease is lost, or it began too late
        before the end of a stop.
        """
        if context.lease_lost:
            run.cancel(run_end.LEASE_LOST)
        else:
            run.cancel(run_end.SHUTDOWN, grace=self._stop_grace())

    def _settle(self, run: AgentRun, end: RunEnd, context: RowContext) -> Settlement:
        claimed, event_id = context.claimed, run.run.event
        if context.lease_lost:
            with suppress(StoreError):  # a sweep ends it then
                self.store.end(run.run.id, end.lost())
        ended = RunSettlement(event=event_id, run=run.run.id, end=end)
        if end.status is RunStatus.SUCCESS:
            done = msgspec.structs.replace(ended, outcome=EventOutcome.RUN)
            return _settlement(claimed, RowOutcome.DONE, done)
        if end.cause == run_end.CANCELLED:
            return _dead(claimed, ended, run_end.CANCELLED, end.error)
        if end.status is RunStatus.CANCELLED:
            delay = _GUARDIAN_RETRY_DELAY if run.was_guardian_lost else 0.0
            is_blamed = run.may_have_killed_guardian
            outcome = RowOutcome.CRASHED if is_blamed else RowOutcome.RELEASED
            return _settlement(claimed, outcome, ended)._replace(delay=delay, error=end.error)
        failed = failure_settlement(
            context, self._retry_policy, reason="failed", error=f"{end.cause}: {end.error}"
        )
        if failed.outcome is RowOutcome.DEAD:
            return _dead(claimed, ended, failed.reason, failed.error or "")
        return failed._replace(result=msgspec.json.encode(ended))


class _GuardianKeeper:
    """Restarts a guardian that has died, before the next run. Thread-safe.

    A run reports the pid of the guardian that it began with, so that a late report does not stop
    the next guardian and its runs.
    """

    def __init__(self, guardian: GuardianClient) -> None:
        self._guardian = guardian
        self._lock = threading.Lock()
        self._is_lost = False

    def report_lost(self, pid: int | None) -> None:
        with self._lock:
            self._is_lost = self._is_lost or pid == self._guardian.pid

    def ensure_running(self) -> int | None:
        """Start the guardian if it was lost, and return its pid. If that fails, the run ends as a
        run without a guardian.
        """
        with self._lock:
            if self._is_lost:
                with suppress(Exception):
                    if self._guardian.stop():
                        self._guardian.start()
                        self._is_lost = False
            return self._guardian.pid


_NO_EVENT = (
    "expected the stream event of this message in the store, found none; was the store restored?"
)


def _settlement(claimed: ClaimedRow, outcome: RowOutcome, decided: RunSettlement) -> Settlement:
    return Settlement(claimed.claim, outcome, result=msgspec.json.encode(decided))


def _dead(claimed: ClaimedRow, decided: RunSettlement, reason: str, error: str) -> Settlement:
    dead = msgspec.structs.replace(decided, outcome=EventOutcome.DEAD_LETTERED, reason=reason)
    return _settlement(claimed, RowOutcome.DEAD, dead)._replace(reason=reason, error=error)


def _with_absolute_paths(agent: AgentSpec) -> AgentSpec:
    """Return the agent with absolute paths. It runs in its workspace, and a relative command is
    meant from the runner's directory.
    """
    program, *arguments = agent.command
    if "/" in program:
        program = str(Path(program).absolute())
    return replace(agent, command=(program, *arguments), workspace=agent.workspace.absolute())
