"""One program, kept up: from its first start to the end that is final."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.breaker import Breaker, BreakerPolicy
from longwatch.core.clock import Clock
from longwatch.core.endcause import EndCause, EndKind
from longwatch.core.events import (
    CircuitBreakerTripped,
    Event,
    Events,
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramEnded,
    ProgramStable,
    ProgramStarted,
    ProgramStopping,
    RestartScheduled,
)
from longwatch.errors import SpawnError
from longwatch.host.children import Guardian
from longwatch.host.patience import settled_within
from longwatch.host.process import KILL_NOW, Child, Ending, ProcessSpec, StopPolicy
from longwatch.supervisor.decision import Decision, RestartPolicy, Verdict
from longwatch.supervisor.healthcheck import HealthPolicy, HttpCheck, watch
from longwatch.supervisor.lifecycle import LIFECYCLE, Move, State

NEEDS_PERSON = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """What is to be kept up, and how."""

    name: str
    process: ProcessSpec
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    stop: StopPolicy = field(default_factory=StopPolicy)
    health: HealthPolicy | None = None
    """None: it is not asked."""


class Program:
    """Keeps one program up: starts it, judges its ends, waits, gives up when the breaker trips.

    `live` is the whole story and runs once, on the loop. `stop` and `kill` may be called on the loop at any time; `signal` passes
    a signal on. What it does is told as events. A run is *stable* once it was up for `backoff.stable_after` seconds and, if it
    is health-checked, was found healthy after that; backoff, breaker and hang counter then start anew.
    """

    def __init__(self, plan: ProgramPlan, *, guardian: Guardian, clock: Clock, events: Events) -> None:
        self.plan = plan
        self.state = State.STOPPED
        self.starts = 0
        self.child: Child | None = None
        self.backoff = Backoff(plan.backoff)
        self.breaker = Breaker(plan.breaker)
        self._guardian = guardian
        self._clock = clock
        self._events = events
        self._unwanted: StopPolicy | None = None
        self._told_to_stop: asyncio.Future[None] | None = None
        self._hangs = 0
        self._stable = False
        self._sick = False

    async def live(self) -> int:
        """From the first start to the end that is final; returns the exit code to pass on."""
        if self._unwanted is not None:
            return EndCause.signal(self._unwanted.signal).exit_code
        self._told_to_stop = asyncio.get_running_loop().create_future()
        self._move(Move.WANTED)
        while True:
            ending = await self._run_once()
            decision = self._judge(ending)
            broken = decision.restart and self._breaks()
            self._tell_end(ending, decision.verdict, restart=decision.restart and not broken)
            if broken:
                return self._give_up()
            if not decision.restart or not await self._pause(ending):
                return ending.cause.exit_code

    def stop(self, policy: StopPolicy | None = None) -> None:
        """Stop it for good: signal, grace, kill. A second call hastens the first with the policy it brings."""
        self._unwanted = policy or self.plan.stop
        if self._told_to_stop is not None and not self._told_to_stop.done():
            self._told_to_stop.set_result(None)
        elif self.child is not None:
            self._end_child(self.child, self._unwanted)

    def kill(self) -> None:
        """Stop it for good, without grace."""
        self.stop(KILL_NOW)

    def signal(self, signum: int) -> None:
        """Pass a signal on to its process group."""
        if self.child is not None:
            self.child.signal(signum)

    # --- one run ---

    async def _run_once(self) -> Ending:
        """Start it, watch it, wait for its end."""
        self.starts += 1
        self._stable = self._sick = False
        try:
            child = await self._guardian.spawn(self.plan.process)
        except SpawnError as error:
            return self._spawn_failed(error)
        self._move(Move.SPAWNED)
        self._tell(ProgramStarted(program=self.plan.name, pid=child.pid, command=tuple(self.plan.process.argv), start=self.starts))
        with self._watched(child):
            return await child.wait()

    @contextmanager
    def _watched(self, child: Child) -> Iterator[None]:
        """While it runs: stop it when told to, notice when it is stable, ask for its health."""
        assert self._told_to_stop is not None
        self.child = child
        watchers = [asyncio.ensure_future(self._stop_when_told(child)), asyncio.ensure_future(self._notice_stable(child))]
        if self.plan.health is not None:
            watchers.append(asyncio.ensure_future(self._check_health(child, self.plan.health)))
        try:
            yield
        finally:
            self.child = None
            for watcher in watchers:
                watcher.cancel()

    async def _stop_when_told(self, child: Child) -> None:
        assert self._told_to_stop is not None
        await asyncio.shield(self._told_to_stop)
        assert self._unwanted is not None
        self._end_child(child, self._unwanted)

    def _end_child(self, child: Child, policy: StopPolicy) -> None:
        if self.state is State.UP:
            self._move(Move.UNWANTED)
        self._tell(ProgramStopping(program=self.plan.name, pid=child.pid, signal=policy.signal, grace=policy.grace))
        child.stop_soon(policy)

    async def _notice_stable(self, child: Child) -> None:
        await self._clock.sleep(self.plan.backoff.stable_after)
        if self.plan.health is None:
            self._is_stable(child)

    def _is_stable(self, child: Child) -> None:
        """Said once a run: forget what went wrong before."""
        if self._stable:
            return
        self._stable, self._hangs = True, 0
        self.backoff.succeeded()
        self.breaker.succeeded()
        self._tell(ProgramStable(program=self.plan.name, pid=child.pid, lasted=self._age(child)))

    async def _check_health(self, child: Child, policy: HealthPolicy) -> None:
        """Ask until it was sick too often, then end the run; the exit decision restarts it."""
        was_healthy = False

        def heard(reason: str | None, failures: int) -> None:
            nonlocal was_healthy
            if reason is not None:
                self._tell(
                    HealthCheckFailed(
                        program=self.plan.name, pid=child.pid, reason=reason, failures=failures, allowed=policy.failures
                    )
                )
            elif not was_healthy:
                self._tell(HealthCheckPassed(program=self.plan.name, pid=child.pid))
            was_healthy = reason is None
            if was_healthy and self._age(child) > self.plan.backoff.stable_after:
                self._is_stable(child)

        await watch(HttpCheck(policy, self._clock), self._clock, heard)
        self._sick = True
        self._hangs += 1
        child.stop_soon(self.plan.stop)

    # --- after a run ---

    def _spawn_failed(self, error: SpawnError) -> Ending:
        if self.starts == 1:
            raise error
        return Ending(cause=EndCause(EndKind.SPAWN_ERROR), lasted=0.0, detail=str(error))

    def _judge(self, ending: Ending) -> Decision:
        decision = self.plan.restart.decide(ending.cause, shutting_down=self._unwanted is not None, killed_sick=self._sick)
        self._move(Move.FAILED if decision.restart else Move.ENDED)
        return decision

    def _breaks(self) -> bool:
        """Record the failure with the breaker; True when that was one too many, or too many hangs in a row."""
        now = self._clock.monotonic()
        too_many = self.breaker.failed(now)
        if self._hangs >= max(self.plan.breaker.tolerated, 1):
            self.breaker.trip(now, f"{self._hangs} runs in a row ended by failed health checks")
            return True
        return too_many

    def _tell_end(self, ending: Ending, verdict: Verdict, *, restart: bool) -> None:
        self._tell(
            ProgramEnded(
                program=self.plan.name,
                pid=ending.pid,
                verdict=verdict,
                cause=ending.cause,
                lasted=ending.lasted,
                restart=restart,
                killed=ending.killed,
                survivors=ending.survivors,
                detail=ending.detail,
            )
        )

    def _give_up(self) -> int:
        self._move(Move.TRIPPED)
        window, reason = self.plan.breaker.window, self.breaker.reason
        self._tell(CircuitBreakerTripped(program=self.plan.name, restarts=self.starts - 1, window=window, reason=reason))
        return NEEDS_PERSON

    async def _pause(self, ending: Ending) -> bool:
        """Wait before the next start; False if it was told to stop meanwhile."""
        assert self._told_to_stop is not None
        delay = self.backoff.failed(lasted=ending.lasted if self._stable else 0.0)
        self._tell(
            RestartScheduled(
                program=self.plan.name, delay=delay, failures=self.backoff.failures, restarts_in_window=len(self.breaker.events)
            )
        )
        told = await settled_within(self._told_to_stop, delay, self._clock)
        self._move(Move.UNWANTED if told else Move.DUE)
        return not told

    # --- small words ---

    def _move(self, move: Move) -> None:
        self.state, _ = LIFECYCLE.step(self.state, move)

    def _tell(self, event: Event) -> None:
        self._events.emit(event)

    def _age(self, child: Child) -> float:
        return self._clock.monotonic() - child.started_at
