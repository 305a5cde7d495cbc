"""One run of a program: from its start to the end of its tree, and what is noticed meanwhile.

Three things are watched while it runs, each in a task of its own that ends with the run: whether it
has been up long enough to be called stable, whether it answers for its health, and whether it is
ready in time. What it says on its notify socket is heard too. A run that fails its checks is
*unhealthy*: it is stopped like any other, and the exit decision starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from math import inf

from longwatch.core.clock import Clock
from longwatch.core.events.base import Event
from longwatch.core.events.programs import (
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramReady,
    ProgramStable,
    ProgramStopping,
)
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.process import KILL_NOW, Child, ProcessEnd, ProcessSpec, StopPolicy
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.healthcheck import HealthChecker, watch_health
from longwatch.supervisor.notify_socket import Notice
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program_listener import ProgramListener, ProgramStop


class ProgramRun:
    """A run of the plan's program by this child. Used on the loop.

    `on_changed` is called when `ready`, `stable`, `stopping` or `unhealthy_reason` has changed.
    """

    def __init__(  # noqa: PLR0913 - a run and its surroundings, each by name
        self,
        plan: ProgramPlan,
        child: Child,
        *,
        clock: Clock,
        emit: Callable[[Event], None],
        listener: ProgramListener,
        on_changed: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.child = child
        self.stable = False
        self.unhealthy_reason = ""
        """Why it has to go; empty while it need not."""
        self.healthy: bool | None = None
        self.health_failures = 0
        self.status_text = ""
        self.stopping = False
        """Whether it is being stopped."""
        self.announced_stop = False
        """Whether it has said that it is about to end."""
        self._ready = asyncio.Event()
        self._ready_deadline = -inf
        self._clock = clock
        self._emit = emit
        self._listener = listener
        self._on_changed = on_changed
        self._checker: HealthChecker | None = None

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and not (self.stopping or self.announced_stop)

    @property
    def age(self) -> float:
        return self._clock.monotonic() - self.child.started_at

    async def watch(
        self, guardian: GuardianClient, process: ProcessSpec, early_notices: Iterable[Notice] = ()
    ) -> ProcessEnd:
        """Watch it until its tree is gone; `said` is what it has said so far."""
        if self.plan.health is not None:
            self._checker = HealthChecker(
                self.plan.health, guardian=guardian, process=process, clock=self._clock
            )
        if self.plan.ready_when is Readiness.UP:
            self._mark_ready()
        for notice in early_notices:
            self.handle_notice(notice)
        with self._watching():
            return await self.child.wait()

    def stop(self, policy: StopPolicy) -> None:
        """Signal, grace, kill; without waiting for it. A second call sends no second signal: it
        can only hasten the first, and is reported only if it kills.
        """
        repeated, self.stopping = self.stopping and not policy.kills, True
        self.child.begin_stop(policy)
        if repeated:
            return
        name, pid = self.plan.name, self.child.pid
        self._emit(ProgramStopping(program=name, pid=pid, signal=policy.signal, grace=policy.grace))
        self._listener.program_stopping(ProgramStop(program=name, kind=self.plan.kind, pid=pid))
        self._on_changed()

    def kill_unhealthy(self, reason: str) -> None:
        """It is alive and of no use: kill it now, and judge its end as that of one that failed
        its health checks.
        """
        if not (self.unhealthy_reason or self.stopping):
            self.unhealthy_reason = reason
            self.stop(KILL_NOW)

    def handle_notice(self, notice: Notice) -> None:
        """What it says by sd_notify."""
        if notice.status is not None:
            self.status_text = notice.status
        if notice.extend_seconds is not None:
            self._extend(notice.extend_seconds)
        if notice.beat and self._checker is not None:
            self._checker.beat()
        if notice.ready:
            self._on_ready_notice()
        if notice.trigger:
            self._mark_unhealthy(
                f"watchdog: {notice.status}" if notice.status else "it said WATCHDOG=trigger"
            )
        if notice.stopping:
            self.announced_stop = True
            self._on_changed()

    def _on_ready_notice(self) -> None:
        """It says that it is ready: no start is to be waited for any longer."""
        if self._checker is not None:
            self._checker.end_extension()
        if self.plan.ready_when is Readiness.NOTIFY:
            self._mark_ready()

    # --- what is watched ---

    @contextmanager
    def _watching(self) -> Iterator[None]:
        watchers = [asyncio.ensure_future(watcher) for watcher in self._watchers()]
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()

    def _watchers(self) -> Iterator[Coroutine[None, None, None]]:
        yield self._watch_stability()
        if self._checker is not None:
            yield self._watch_health(self._checker)
        if self.plan.ready_timeout is not None:
            yield self._watch_readiness(self.plan.ready_timeout)

    async def _watch_stability(self) -> None:
        await self._clock.sleep(self.plan.backoff.stable_after)
        if self._checker is None:
            self._mark_stable()

    async def _watch_health(self, checker: HealthChecker) -> None:
        reason = await watch_health(checker, self._clock, self._on_health_result)
        self._mark_unhealthy(reason)

    async def _watch_readiness(self, seconds: float) -> None:
        self._ready_deadline = max(self._ready_deadline, self._clock.monotonic() + seconds)
        while (left := self._ready_deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        if not self._ready.is_set():
            self._mark_unhealthy(f"not ready after {seconds:g} s")

    def _on_health_result(self, reason: str | None, failures: int) -> None:
        """An answer for its health came, or did not."""
        name, pid, was_healthy = self.plan.name, self.child.pid, self.healthy
        self.healthy, self.health_failures = reason is None, failures
        if reason is not None and not failures:
            return  # while it starts, nothing is held against it
        if reason is not None:
            allowed = self.plan.health.failures if self.plan.health else 0
            self._emit(
                HealthCheckFailed(
                    program=name, pid=pid, reason=reason, failures=failures, threshold=allowed
                )
            )
            return
        if not was_healthy:
            self._emit(HealthCheckPassed(program=name, pid=pid))
        if self.plan.ready_when is Readiness.HEALTHY:
            self._mark_ready()
        if self.age > self.plan.backoff.stable_after:
            self._mark_stable()

    # --- what it has become ---

    def _mark_ready(self) -> None:
        if self._ready.is_set():
            return
        self._ready.set()
        if self.plan.ready_when is not Readiness.UP:
            self._emit(
                ProgramReady(program=self.plan.name, pid=self.child.pid, startup_seconds=self.age)
            )
        self._on_changed()

    def _mark_stable(self) -> None:
        if not self.stable:
            self.stable = True
            self._emit(ProgramStable(program=self.plan.name, pid=self.child.pid, lasted=self.age))
            self._on_changed()

    def _mark_unhealthy(self, reason: str) -> None:
        if not (self.unhealthy_reason or self.stopping or self.announced_stop):
            self.unhealthy_reason = reason
            self.stop(self.plan.stop)

    def _extend(self, seconds: float) -> None:
        """It needs more time for whatever it is doing: starting or stopping."""
        self._ready_deadline = max(self._ready_deadline, self._clock.monotonic() + seconds)
        if self._checker is not None:
            self._checker.extend_startup(seconds)
        self.child.extend_stop(seconds)
