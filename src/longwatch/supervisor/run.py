"""One run of a program: from its start to the end of its tree, and what is noticed meanwhile.

Three things are watched while it runs, each in a task of its own that ends with the run: whether it
has been up long enough to be called stable, whether it answers for its health, and whether it is
ready in time. What it says on its notify socket is heard too. A run that fails its checks is
*sick*: it is stopped like any other, and the exit decision starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager

from longwatch.core.clock import Clock
from longwatch.core.events import (
    Event,
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramReady,
    ProgramStable,
    ProgramStopping,
)
from longwatch.host.children import Guardian
from longwatch.host.process import KILL_NOW, Child, Ending, ProcessSpec, StopPolicy
from longwatch.supervisor.conditions import Readiness
from longwatch.supervisor.healthcheck import Checker, watch
from longwatch.supervisor.notify import Notice
from longwatch.supervisor.plan import ProgramPlan


class Run:
    """A run of the plan's program by this child. Used on the loop.

    `changed` is called whenever `ready`, `stable` or `sick` has become another.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        child: Child,
        *,
        clock: Clock,
        tell: Callable[[Event], None],
        changed: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.child = child
        self.stable = False
        self.sick = ""
        """Why it has to go; empty while it need not."""
        self.healthy: bool | None = None
        self.health_failures = 0
        self.status_text = ""
        self.stopping = False
        """Whether it is being stopped."""
        self.leaving = False
        """Whether it has said that it is about to end."""
        self._ready = asyncio.Event()
        self._ready_by = 0.0
        self._clock = clock
        self._tell = tell
        self._changed = changed
        self._checker: Checker | None = None

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and not (self.stopping or self.leaving)

    @property
    def age(self) -> float:
        return self._clock.monotonic() - self.child.started_at

    async def to_its_end(
        self, guardian: Guardian, process: ProcessSpec, said: Iterable[Notice] = ()
    ) -> Ending:
        """Watch it until its tree is gone; `said` is what it has said so far."""
        if self.plan.health is not None:
            self._checker = Checker(
                self.plan.health, guardian=guardian, process=process, clock=self._clock
            )
        if self.plan.ready_when is Readiness.UP:
            self._become_ready()
        for notice in said:
            self.hear(notice)
        with self._watched():
            return await self.child.wait()

    def stop(self, policy: StopPolicy) -> None:
        """Signal, grace, kill; without waiting for it. A second call hastens the first."""
        self.stopping = True
        self._tell(
            ProgramStopping(
                program=self.plan.name, pid=self.child.pid, signal=policy.signal, grace=policy.grace
            )
        )
        self.child.stop_soon(policy)
        self._changed()

    def condemn(self, reason: str) -> None:
        """It is alive and of no use: kill it now, and judge its end as that of one that failed
        its health checks.
        """
        if not (self.sick or self.stopping):
            self.sick = reason
            self.stop(KILL_NOW)

    def hear(self, notice: Notice) -> None:
        """What it says by sd_notify."""
        if notice.status is not None:
            self.status_text = notice.status
        if notice.extend is not None:
            self._extend(notice.extend)
        if notice.beat and self._checker is not None:
            self._checker.beat()
        if notice.ready:
            self._has_started()
        if notice.trigger:
            self._fall_sick(
                f"watchdog: {notice.status}" if notice.status else "it said WATCHDOG=trigger"
            )
        if notice.stopping:
            self.leaving = True
            self._changed()

    def _has_started(self) -> None:
        """It says that it is ready: no start is to be waited for any longer."""
        if self._checker is not None:
            self._checker.end_extension()
        if self.plan.ready_when is Readiness.NOTIFY:
            self._become_ready()

    # --- what is watched ---

    @contextmanager
    def _watched(self) -> Iterator[None]:
        watchers = [asyncio.ensure_future(watcher) for watcher in self._watchers()]
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()

    def _watchers(self) -> Iterator[Coroutine[None, None, None]]:
        yield self._notice_stable()
        if self._checker is not None:
            yield self._ask_for_health(self._checker)
        if self.plan.ready_timeout is not None:
            yield self._be_ready_in(self.plan.ready_timeout)

    async def _notice_stable(self) -> None:
        await self._clock.sleep(self.plan.backoff.stable_after)
        if self._checker is None:
            self._become_stable()

    async def _ask_for_health(self, checker: Checker) -> None:
        reason = await watch(checker, self._clock, self._heard)
        self._fall_sick(reason)

    async def _be_ready_in(self, seconds: float) -> None:
        self._ready_by = max(self._ready_by, self._clock.monotonic() + seconds)
        while (left := self._ready_by - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        if not self._ready.is_set():
            self._fall_sick(f"not ready after {seconds:g} s")

    def _heard(self, reason: str | None, failures: int) -> None:
        """An answer for its health came, or did not."""
        name, pid, was_healthy = self.plan.name, self.child.pid, self.healthy
        self.healthy, self.health_failures = reason is None, failures
        if reason is not None and not failures:
            return  # while it starts, nothing is held against it
        if reason is not None:
            allowed = self.plan.health.failures if self.plan.health else 0
            self._tell(
                HealthCheckFailed(
                    program=name, pid=pid, reason=reason, failures=failures, allowed=allowed
                )
            )
            return
        if not was_healthy:
            self._tell(HealthCheckPassed(program=name, pid=pid))
        if self.plan.ready_when is Readiness.HEALTHY:
            self._become_ready()
        if self.age > self.plan.backoff.stable_after:
            self._become_stable()

    # --- what it has become ---

    def _become_ready(self) -> None:
        if self._ready.is_set():
            return
        self._ready.set()
        if self.plan.ready_when is not Readiness.UP:
            self._tell(ProgramReady(program=self.plan.name, pid=self.child.pid, after=self.age))
        self._changed()

    def _become_stable(self) -> None:
        if not self.stable:
            self.stable = True
            self._tell(ProgramStable(program=self.plan.name, pid=self.child.pid, lasted=self.age))
            self._changed()

    def _fall_sick(self, reason: str) -> None:
        if not (self.sick or self.stopping or self.leaving):
            self.sick = reason
            self.stop(self.plan.stop)

    def _extend(self, seconds: float) -> None:
        """It needs more time for whatever it is doing: starting or stopping."""
        self._ready_by = max(self._ready_by, self._clock.monotonic() + seconds)
        if self._checker is not None:
            self._checker.extend_startup(seconds)
        self.child.extend_stop(seconds)
