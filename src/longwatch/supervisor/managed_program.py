"""A program as the supervisor manages it: its desired state, its dependencies, its status.

`ChangeSignal` wakes code that waits for a condition, to check it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

from longwatch.core.clock import Clock
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.dependencies import Condition
from longwatch.supervisor.lifecycle import ProgramState
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probe_watch import ProbeStatus
from longwatch.supervisor.probes import NO_PROBES
from longwatch.supervisor.program import Program


class ChangeSignal:
    """Wakes the waiters for a condition, on the event loop. Frequent notifications are cheap: each
    waiter checks its condition once per turn of the loop.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all waiters: their conditions may hold now."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; it is checked now and after every `notify`."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)


ProgramStatus = dict[str, Any]
_LATE_STOP_SECONDS = 5.0
"""Seconds after an end within which the runtime may report that a person caused it."""


class ProgramLookup(Protocol):
    """The other programs, as a managed program sees them."""

    def __getitem__(self, name: str) -> ManagedProgram: ...

    def __contains__(self, name: object) -> bool: ...


class ManagedProgram:
    """Runs a program whenever a start is requested, one activation after the other. Used on the
    event loop.

    `desired` is durable. `start_requested` is a start that has not been made yet: a program that
    ended by itself is still desired, but is not started again for that.
    """

    def __init__(
        self, program: Program, *, programs: ProgramLookup, changes: ChangeSignal, clock: Clock
    ) -> None:
        self.program = program
        self.start_requested = False
        self.active = False
        self.activations = 0
        self.retired = False
        """Whether it is removed as soon as its current activation ends."""
        self.exit_code: int | None = None
        """The exit code of its last activation."""
        self._stopping: asyncio.Future[None] | None = None
        self._programs = programs
        self._changes = changes
        self._clock = clock

    @property
    def plan(self) -> ProgramPlan:
        return self.program.plan

    @property
    def state(self) -> ProgramState:
        return self.program.state

    @property
    def desired(self) -> bool:
        if self.plan.on_demand:
            return not self.idle
        recorded = self.program.record.desired
        return self.plan.autostart if recorded is None else recorded

    @property
    def up(self) -> bool:
        return self.program.run is not None

    @property
    def pid(self) -> int | None:
        """The pid of the first process of its run; None without a run, or if it is not visible on
        this host.
        """
        return (self.program.run.pid or None) if self.program.run is not None else None

    @property
    def ready(self) -> bool:
        return self.program.run is not None and self.program.run.ready

    @property
    def idle(self) -> bool:
        return not (self.active or self.start_requested)

    async def supervise(self, on_finished: Callable[[ManagedProgram, int], None]) -> None:
        """Run it for each requested start, until it is retired."""
        while True:
            await self._changes.wait_until(lambda: self.start_requested or self.retired)
            if self.retired:
                return
            self.start_requested, self.active = False, True
            self.activations += 1
            try:
                self.exit_code = await self.program.keep_up(self._wait_for_dependencies)
            finally:
                self.active = False
                if self.plan.on_demand:
                    self.retired = True
                self.notify_changed()
            on_finished(self, self.exit_code)

    def request_start(self) -> None:
        """Start it, whatever kept it down. A program that is being stopped starts again after
        that.
        """
        if self.active and not self.program.stop_requested:
            self.program.reset()
        else:
            self.start_requested = True
            self.notify_changed()

    def start_if_desired(self) -> None:
        """Request a start if it is desired."""
        if self.desired:
            self.request_start()

    def stop(self, *, leave: bool = False) -> None:
        """Stop it and cancel a requested start. With `leave`, a container without `stop_on_exit`
        keeps running.
        """
        self.start_requested = False
        if self.active:
            self.program.stop(shutting_down=False, leave=leave)
        elif self.plan.on_demand:
            self.retired = True
            self.notify_changed()

    def restart(self) -> None:
        """Stop it if it runs, clear its failures, and start it again."""
        self.program.reset()
        if self.active:
            self.program.stop(shutting_down=False)
        self.start_requested = True
        self.notify_changed()

    def started_elsewhere(self, started_at: float) -> None:
        """Handle an unwatched container that runs since this wall time. If a person started it
        after the last stop, it becomes desired again. Otherwise the stop failed, and is repeated.
        """
        if not self.idle or self.retired:
            return
        if started_at > (self.program.record.stopped_at or 0.0):
            self.program.record.desired = True
            self.request_start()
        elif self._stopping is None or self._stopping.done():
            self._stopping = asyncio.ensure_future(self.program.stop_unwatched())

    def stopped_elsewhere(self) -> None:
        """Handle a stop by the runtime's own command, if the program is not up again yet."""
        end = self.program.record.last_end
        has_just_ended = end is not None and self._clock.wall() - end.at < _LATE_STOP_SECONDS
        if has_just_ended and self.active and not (self.up or self.program.stop_requested):
            self.mark_stopped()
            self.stop()

    def mark_stopped(self) -> None:
        """Record that it is not desired from now on."""
        self.program.record.desired = False
        self.program.record.stopped_at = self._clock.wall()

    def notify_changed(self) -> None:
        """Wake the code that waits for a change."""
        self._changes.notify()

    # --- dependencies ---

    def satisfies(self, condition: Condition) -> bool:
        """Return whether this condition, for which another program waits, is met."""
        match condition:
            case Condition.STARTED:
                return self.up
            case Condition.READY:
                return self.ready
            case Condition.COMPLETED:
                return self.program.completed

    @property
    def waiting_for(self) -> list[str]:
        """The dependencies that are not met yet."""
        return [
            f"{name}: {condition}"
            for name, condition in self.plan.depends_on.items()
            if name not in self._programs or not self._programs[name].satisfies(condition)
        ]

    async def _wait_for_dependencies(self) -> None:
        await self._changes.wait_until(lambda: not self.waiting_for)

    # --- status ---

    def status(self, unready_reason: str = "") -> ProgramStatus:
        """Return its status in plain JSON types. `unready_reason` is why the program itself reports
        that it is not ready. It changes what is shown, and nothing else.
        """
        program, run, record = self.program, self.program.run, self.program.record
        return {
            "name": self.plan.name,
            "state": self.state.value,
            "desired": "up" if self.desired else "stopped",
            "up": self.up,
            "ready": self.ready and not unready_reason,
            "unready_reason": unready_reason if self.ready else "",
            "kind": self.plan.kind.value,
            "group": self.plan.group or None,
            "pid": self.pid,
            "last_start": record.last_start,
            "uptime": run.age if run else None,
            "consecutive_failures": program.backoff.failures,
            "restart_history": list(record.history),
            "total_restarts": record.restarts,
            "current_backoff": program.plan.backoff.delay(program.backoff.failures),
            "next_start": program.next_start,
            "health_failures": run.health_failures if run else 0,
            "probes": self._probe_status(),
            "breaker": self._breaker_status(),
            "last_end": record.last_end._asdict() if record.last_end else None,
            "last_error": program.last_error,
            "waiting_for": self.waiting_for if self.state is ProgramState.PENDING else [],
            "status_text": run.status_text if run else "",
            "critical": self.plan.critical,
            **self._container_status(),
        }

    def _probe_status(self) -> ProgramStatus:
        """Return each probe of the plan by its kind; pending while there is no run."""
        run, probes = self.program.run, self.plan.probes
        if probes == NO_PROBES:
            return {}
        statuses = run.probe_statuses if run else ProbeStatus.all_pending(probes)
        return {kind.value: status.to_dict() for kind, status in statuses.items()}

    def _container_status(self) -> ProgramStatus:
        """Return the fields that only a container has."""
        spec = self.plan.spec
        if not isinstance(spec, ContainerSpec):
            return {}
        return {
            "agent": spec.agent,
            "repo": spec.repo,
            "manifest_path": spec.manifest_path,
            "image": spec.image,
            "restarting": self.state in {ProgramState.WAITING, ProgramState.STARTING},
            "crash_loop_restarts": self.program.record.crash_loops,
            **self.program.target_facts(),
        }

    def _breaker_status(self) -> ProgramStatus:
        breaker, now = self.program.breaker, self._clock.wall()
        remaining = breaker.cooldown_remaining(now)
        cooldown_left = remaining if remaining is None or isfinite(remaining) else None
        return {
            "phase": breaker.state(now).value,
            "reason": breaker.reason,
            "cooldown_left": cooldown_left,
        }
