"""One run of a program: from its start to the end of its process tree.

Four tasks watch it until the run ends. One marks it stable when it has been up long enough, one
runs its probes, one stops it if it is not ready in time, and one forgets its crash loops after a
while. Notices on its notify socket count too. A run that fails its liveness probe is *unhealthy*:
it is stopped like any other, and the restart decision starts it again. A run whose probe can never
run is *refused*: it is no longer watched, and a container is left running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.duration import format_duration
from longwatch.core.events.base import Event
from longwatch.core.events.programs import (
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramNotReady,
    ProgramReady,
    ProgramStable,
    ProgramStopping,
)
from longwatch.host.process import KILL_NOW, ProcessEnd, StopPolicy
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.notify_socket import Notice
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probe_watch import ProbeStatus, ProbeWatch
from longwatch.supervisor.probes import ProbeKind, ProbeState
from longwatch.supervisor.program_listener import ProgramListener, ProgramStop
from longwatch.supervisor.target import LiveTarget


class ProgramRun:
    """One run of the plan's program and its target. Used on the event loop.

    `on_changed` is called when `ready`, `stable`, `settled`, `stopping`, `unhealthy_reason` or
    `refusal` has changed. Probing starts after `hold` seconds.
    """

    def __init__(  # noqa: PLR0913 - a run and its dependencies, each by name
        self,
        plan: ProgramPlan,
        target: LiveTarget,
        *,
        clock: Clock,
        emit: Callable[[Event], None],
        listener: ProgramListener,
        on_changed: Callable[[], None],
        hold: float = 0.0,
    ) -> None:
        self.plan = plan
        self.target = target
        self.stable = False
        self.settled = False
        """Whether it ran long enough to forget earlier crash loops."""
        self.unhealthy_reason = ""
        """Why it is unhealthy; empty while it is not."""
        self.refusal = ""
        """Why it cannot be watched, for a person to correct; empty if it can."""
        self.status_text = ""
        self.stopping = False
        """Whether it is being stopped."""
        self.announced_stop = False
        """Whether it announced its end with `STOPPING=1`."""
        self._ready = asyncio.Event()
        self._ready_deadline = -inf
        self._clock = clock
        self._emit = emit
        self._listener = listener
        self._on_changed = on_changed
        self._tasks: list[asyncio.Future[None]] = []
        self._is_watching = False
        self._probe_watch = self._new_probe_watch(hold)

    @property
    def ready(self) -> bool:
        if self.stopping or self.announced_stop or self.target.is_paused:
            return False
        if self.plan.ready_when is Readiness.PROBE:
            status = self.probe_statuses.get(ProbeKind.READINESS)
            return status is not None and status.state is ProbeState.SUCCESS
        return self._ready.is_set()

    @property
    def pid(self) -> int:
        """The pid of its first process; 0 if it is not visible on this host."""
        return self.target.pid or 0

    @property
    def age(self) -> float:
        return self._clock.monotonic() - self.target.started_at

    @property
    def probe_statuses(self) -> dict[ProbeKind, ProbeStatus]:
        return self._probe_watch.statuses

    @property
    def health_failures(self) -> int:
        """Failed liveness probes in a row."""
        status = self.probe_statuses.get(ProbeKind.LIVENESS)
        return status.failures if status is not None else 0

    async def watch(self, early_notices: Iterable[Notice] = ()) -> ProcessEnd:
        """Watch it until its tree is gone. `early_notices` are the notices received so far."""
        if self.plan.ready_when is Readiness.UP:
            self._mark_ready()
        for notice in early_notices:
            self.handle_notice(notice)
        with self._watching():
            return await self.target.wait()

    def apply_plan(self, plan: ProgramPlan) -> None:
        """Switch to another plan while it runs; changed probes start over. For a target that needs
        no restart for that.
        """
        changed = (plan.probes, plan.ready_when) != (self.plan.probes, self.plan.ready_when)
        self.plan = plan
        if changed:
            self.restart_probes()

    def restart_probes(self) -> None:
        """Start all probes over, without a hold."""
        if self._is_watching and not self.stopping:
            self._cancel_watchers()
            self._probe_watch = self._new_probe_watch(0.0)
            self._tasks = self._start_watchers()
            self._on_changed()

    def stop(self, policy: StopPolicy) -> None:
        """Stop it with signal, grace and kill, without waiting. A second call sends no second
        signal: it can only shorten the stop, and is reported only if it kills.
        """
        repeated, self.stopping = self.stopping and not policy.kills, True
        self.target.begin_stop(policy)
        if repeated:
            return
        name, pid = self.plan.name, self.pid
        self._emit(ProgramStopping(program=name, pid=pid, signal=policy.signal, grace=policy.grace))
        self._listener.program_stopping(ProgramStop(program=name, kind=self.plan.kind, pid=pid))
        self._on_changed()

    def detach(self) -> bool:
        """Stop watching it and leave it running; False if it cannot live without us."""
        if self.stopping or not self.target.detach():
            return False
        self.stopping = True
        self._on_changed()
        return True

    def refuse(self, reason: str) -> None:
        """Give it up because its settings must be corrected: leave it running, or stop it if it
        cannot live without us.
        """
        if not (self.refusal or self.stopping):
            self.refusal = reason
            if not self.detach():
                self.stop(self.plan.stop)

    def kill_unhealthy(self, reason: str) -> None:
        """Kill it now, and judge its end like a failed health check. For a process that lives but
        cannot work.
        """
        if not (self.unhealthy_reason or self.stopping):
            self.unhealthy_reason = reason
            self.stop(KILL_NOW)

    def handle_notice(self, notice: Notice) -> None:
        """Handle an sd_notify notice from it."""
        if notice.status is not None:
            self.status_text = notice.status
        if notice.extend_seconds is not None:
            self._extend(notice.extend_seconds)
        if notice.beat:
            self._probe_watch.beat()
        if notice.ready:
            self._on_ready_notice()
        if notice.trigger:
            self._mark_unhealthy(
                f"watchdog: {notice.status}" if notice.status else "it sent WATCHDOG=trigger"
            )
        if notice.stopping:
            self.announced_stop = True
            self._on_changed()

    def _on_ready_notice(self) -> None:
        """Handle `READY=1`: the startup time is no longer extended."""
        self._probe_watch.end_extension()
        if self.plan.ready_when is Readiness.NOTIFY:
            self._mark_ready()

    # --- watcher tasks ---

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._is_watching = True
        self._tasks = self._start_watchers()
        try:
            yield
        finally:
            self._is_watching = False
            self._cancel_watchers()

    def _start_watchers(self) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(watcher) for watcher in self._watchers()]

    def _cancel_watchers(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _watchers(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._watch_stability()
        if self.plan.probes:
            yield self._watch_probes()
        if self.plan.probes.crash_loop is not None:
            yield self._watch_settling(self.plan.probes.crash_loop.stable_after)
        if self.plan.ready_timeout is not None:
            yield self._watch_readiness(self.plan.ready_timeout)

    async def _watch_stability(self) -> None:
        await self._sleep_until_age(self.plan.backoff.stable_after)
        if self.plan.probes.liveness is None and self.plan.probes.startup is None:
            self._mark_stable()

    async def _watch_settling(self, seconds: float) -> None:
        await self._sleep_until_age(seconds)
        self.settled = True
        self._on_changed()

    async def _sleep_until_age(self, seconds: float) -> None:
        await self._clock.sleep(max(seconds - self.age, 0.0))

    async def _watch_probes(self) -> None:
        verdict = await self._probe_watch.run()
        if verdict.refused:
            self.refuse(verdict.reason)
        else:
            self._mark_unhealthy(verdict.reason)

    async def _watch_readiness(self, seconds: float) -> None:
        self._ready_deadline = max(self._ready_deadline, self._clock.monotonic() + seconds)
        while (left := self._ready_deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        if not self._ready.is_set():
            self._mark_unhealthy(f"not ready after {format_duration(seconds)}")

    # --- probe results ---

    def _new_probe_watch(self, hold: float) -> ProbeWatch:
        self._last_states: dict[ProbeKind, ProbeState] = {}
        self._was_healthy = False
        return ProbeWatch(
            self.plan.probes,
            self.target,
            clock=self._clock,
            on_result=self._on_probe_result,
            hold=hold,
        )

    def _on_probe_result(self, status: ProbeStatus, reason: str | None) -> None:
        """Handle the result of a probe; `reason` is None if it passed."""
        if status.kind is ProbeKind.READINESS:
            self._on_readiness(status, reason)
        elif reason is None:
            self._on_healthy(status)
        else:
            self._was_healthy = False
            if status.failures:  # failures during startup do not count
                self._report_failure(status, reason)

    def _on_healthy(self, status: ProbeStatus) -> None:
        if not self._was_healthy:
            self._was_healthy = True
            self._emit(HealthCheckPassed(program=self.plan.name, pid=self.pid, probe=status.kind))
        if self.plan.ready_when is Readiness.HEALTHY and status.state is ProbeState.SUCCESS:
            self._mark_ready()
        if self.age > self.plan.backoff.stable_after:
            self._mark_stable()

    def _on_readiness(self, status: ProbeStatus, reason: str | None) -> None:
        """Report each failure, and each change of the state once."""
        was, now = self._last_states.get(status.kind), status.state
        self._last_states[status.kind] = now
        if reason is not None and now is not ProbeState.SUCCESS and was is not ProbeState.FAILED:
            self._report_failure(status, reason)
        if now is was or self.plan.ready_when is not Readiness.PROBE:
            return
        if now is ProbeState.SUCCESS:
            self._ready.set()
            self._report_ready()
            self._on_changed()
        elif now is ProbeState.FAILED:
            self._emit(ProgramNotReady(program=self.plan.name, pid=self.pid, reason=status.reason))
            self._on_changed()

    def _report_failure(self, status: ProbeStatus, reason: str) -> None:
        policy = getattr(self.plan.probes, status.kind)
        self._emit(
            HealthCheckFailed(
                program=self.plan.name,
                pid=self.pid,
                probe=status.kind,
                reason=reason,
                failures=status.failures,
                threshold=getattr(policy, "failures", 0),
            )
        )

    # --- changes of its state ---

    def _mark_ready(self) -> None:
        if self._ready.is_set():
            return
        self._ready.set()
        if self.plan.ready_when is not Readiness.UP:
            self._report_ready()
        self._on_changed()

    def _report_ready(self) -> None:
        self._emit(ProgramReady(program=self.plan.name, pid=self.pid, startup_seconds=self.age))

    def _mark_stable(self) -> None:
        if not self.stable:
            self.stable = True
            self._emit(ProgramStable(program=self.plan.name, pid=self.pid, lasted=self.age))
            self._on_changed()

    def _mark_unhealthy(self, reason: str) -> None:
        if not (self.unhealthy_reason or self.stopping or self.announced_stop):
            self.unhealthy_reason = reason
            self.stop(self.plan.stop)

    def _extend(self, seconds: float) -> None:
        """Give it more time for its start or stop."""
        self._ready_deadline = max(self._ready_deadline, self._clock.monotonic() + seconds)
        self._probe_watch.extend_startup(seconds)
        self.target.extend_stop(seconds)
