"""One program, kept up: from being wanted to an end that is final.

wanted → what it depends on is there → run → judge the end ─┬─ done: ended or stopped
                                        ▲                   ├─ back off ──────────┐
                                        │                   └─ too often: broken ─┤ cool down
                                        └─────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from longwatch.core.backoff import Backoff
from longwatch.core.breaker import Breaker, BreakerState
from longwatch.core.clock import Clock
from longwatch.core.end_cause import EndCause, EndKind
from longwatch.core.events.base import Events
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    ProgramEnded,
    ProgramStarted,
    RestartScheduled,
)
from longwatch.errors import SpawnError
from longwatch.host.capture import LineSink
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import wait_until_done
from longwatch.host.process import KILL_NOW, ProcessEnd, ProcessSpec, StopPolicy
from longwatch.supervisor.end_judge import EndJudges
from longwatch.supervisor.lifecycle import LIFECYCLE, ProgramState, ProgramTransition
from longwatch.supervisor.notify_socket import Notice, NotifySocket
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probes import HeartbeatProbe
from longwatch.supervisor.program_listener import (
    BreakerTrip,
    ProgramEnd,
    ProgramListener,
    ProgramStart,
)
from longwatch.supervisor.program_record import LastEnd, ProgramRecord
from longwatch.supervisor.program_run import ProgramRun
from longwatch.supervisor.restart_policy import STOP_VERDICTS, EndVerdict, RestartDecision

EXIT_NEEDS_OPERATOR = 100
EXIT_CLEAN_STOP = 0
"""Of a program that was stopped between two runs: nothing of it was left to stop."""
_MAX_EARLY_NOTICES = 16
_SUCCESS_VERDICTS = frozenset(
    {EndVerdict.CLEAN_EXIT, EndVerdict.INTENTIONAL_SIGNAL, *STOP_VERDICTS}
)

DependencyWait = Callable[[], Awaitable[None]]
"""Returns when what a program depends on is there."""


class Streams(NamedTuple):
    """Where a program's input comes from and its output goes: as in ProcessSpec."""

    stdin: int | None = None
    stdout: LineSink | int | None = 1
    stderr: LineSink | int | None = 2


INHERITED_STREAMS = Streams()


async def _no_dependencies() -> None:
    """Nothing to wait for."""


class Program:
    """Keeps one program up: starts it, judges its ends, waits, gives up when the breaker trips.

    `keep_up` runs on the loop and may be called again after it returned. `stop`, `kill` and `reset`
    may be called on the loop at any time; `signal` passes a signal on. Starts and ends are emitted
    as events and passed to the `listener`. `on_changed` is called after every transition.

    A run is *stable* once it was up for `backoff.stable_after` seconds and, if it is
    health-checked, was found healthy after that: backoff, breaker and hang counter start anew. With
    `strict`, the very first start must work: SpawnError if it does not. `end_judges` knows more
    about the ends of worker processes.
    """

    def __init__(  # noqa: PLR0913 - a program and its surroundings, most of them optional
        self,
        plan: ProgramPlan,
        *,
        guardian: GuardianClient,
        clock: Clock,
        events: Events,
        listener: ProgramListener | None = None,
        end_judges: EndJudges | None = None,
        streams: Streams = INHERITED_STREAMS,
        record: ProgramRecord | None = None,
        notify_socket: NotifySocket | None = None,
        on_changed: Callable[[], None] = lambda: None,
        strict: bool = False,
    ) -> None:
        self.state = ProgramState.STOPPED
        self.run: ProgramRun | None = None
        self.record = record or ProgramRecord()
        self.next_start: float | None = None
        """Wall time of the next start while it waits for it."""
        self.completed = False
        """Whether its last life came to a good end by itself."""
        self.failed = False
        """Whether its last life came to a bad end that nothing is done about."""
        self.streams = streams
        self.notify_socket = notify_socket
        self._guardian = guardian
        self._clock = clock
        self._emit = events.emit
        self._listener = listener or ProgramListener()
        self._end_judges = end_judges or EndJudges(events)
        self._on_changed = on_changed
        self._strict = strict
        self._interruption: asyncio.Future[None] | None = None
        self._early_notices: list[Notice] = []
        self._stop_policy: StopPolicy | None = None
        self._shutting_down = False
        self._is_exempt = False
        """Whether the last end feeds neither breaker nor backoff."""
        self.apply_plan(plan)

    def apply_plan(self, plan: ProgramPlan) -> None:
        """Go by this plan from now on: what can change as it runs does, the rest with the next
        start.
        """
        saved = self.record.breaker
        self.plan = plan
        self.backoff = Backoff(plan.backoff, failures=self.record.failures)
        self.breaker = (
            Breaker(plan.breaker) if saved is None else Breaker.from_dict(plan.breaker, saved)
        )
        if self.run is not None:
            self.breaker.allow_start(self._clock.wall())  # a trial that is under way stays one

    async def keep_up(self, wait_for_dependencies: DependencyWait = _no_dependencies) -> int:
        """From being wanted to an end that is final; returns the exit code to pass on."""
        try:
            return await self._keep_up(wait_for_dependencies)
        finally:
            self._stop_policy, self._interruption = None, None

    async def _keep_up(self, wait_for_dependencies: DependencyWait) -> int:
        if self._stop_policy is not None:
            return EndCause.signal(self._stop_policy.signal).exit_code
        self.completed = self.failed = False
        self._transition(ProgramTransition.START_REQUESTED)
        if not await self._wait_to_start(wait_for_dependencies):
            return EndCause.signal(self.plan.stop.signal).exit_code
        while True:
            ending = await self._run_once()
            decision = self._decide(ending)
            tripped = decision.restart and not self._is_exempt and self._trips_breaker()
            self._record_end(ending, decision, restart=decision.restart and not tripped)
            if not decision.restart:
                return ending.cause.exit_code
            if tripped and self._on_breaker_tripped():
                return EXIT_NEEDS_OPERATOR
            if not await (self._cool_down() if tripped else self._back_off(ending)):
                return EXIT_CLEAN_STOP

    @property
    def stop_requested(self) -> bool:
        """Whether its present life was told to end."""
        return self._stop_policy is not None

    # --- told from outside ---

    def stop(self, policy: StopPolicy | None = None, *, shutting_down: bool = True) -> None:
        """End its life: signal, grace, kill. A second call sends no second signal: it hastens the
        first if its grace ends earlier, or if it kills.
        """
        self._stop_policy = policy or self.plan.stop
        self._shutting_down = shutting_down
        if self.run is not None:
            self.run.stop(self._stop_policy)
        self._interrupt()

    def kill(self) -> None:
        """End its life without grace."""
        self.stop(KILL_NOW)

    def signal(self, signum: int) -> None:
        """Pass a signal on to its process group."""
        if self.run is not None:
            self.run.child.signal(signum)

    def reset(self) -> None:
        """Forget what went wrong; one that is broken, or waits, starts now."""
        self.breaker.reset()
        self.backoff.succeeded()
        self.record.hangs = 0
        self._update_record()
        if self.state in (ProgramState.WAITING, ProgramState.BROKEN):
            self._interrupt()

    def handle_notice(self, notice: Notice) -> None:
        """What it says on its notify socket; a quick one says it before we have heard that it
        runs.
        """
        if self.run is not None:
            self.run.handle_notice(notice)
        elif self.state is ProgramState.STARTING:
            self._early_notices = [*self._early_notices, notice][-_MAX_EARLY_NOTICES:]

    # --- before a run ---

    async def _wait_to_start(self, wait_for_dependencies: DependencyWait) -> bool:
        """Wait for what it depends on, and for an open breaker that was remembered; False if it
        was told to stop meanwhile.
        """
        waiting = asyncio.ensure_future(wait_for_dependencies())
        try:
            while not waiting.done() and self._stop_policy is None:
                await asyncio.wait(
                    {waiting, self._await_interruption()}, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            waiting.cancel()
        if self._stop_policy is not None:
            self._transition(ProgramTransition.STOP_REQUESTED)
            return False
        if not self.breaker.allow_start(self._clock.wall()):
            self._transition(ProgramTransition.BREAKER_TRIPPED)
            return await self._cool_down()
        self._transition(ProgramTransition.START_DUE)
        return True

    # --- one run ---

    async def _run_once(self) -> ProcessEnd:
        """Start it, watch it, wait for its end."""
        self.record.starts += 1
        self.record.last_start = self._clock.wall()
        process = self._process_spec()
        if self.notify_socket is not None:
            self.notify_socket.drain()
        self._early_notices = []
        try:
            child = await self._guardian.spawn(process)
        except SpawnError as error:
            return self._spawn_failed(error)
        self.run = ProgramRun(
            self.plan,
            child,
            clock=self._clock,
            emit=self._emit,
            listener=self._listener,
            on_changed=self._on_run_changed,
        )
        self._report_start(child.pid)
        self._transition(ProgramTransition.SPAWNED)
        if self._stop_policy is not None:
            self.run.stop(self._stop_policy)
        try:
            ending = await self.run.watch(self._guardian, process, self._early_notices)
            return replace(ending, detail=ending.detail or self.run.unhealthy_reason)
        finally:
            self._was_stable, self._was_unhealthy = self.run.stable, bool(self.run.unhealthy_reason)
            self.run = None

    def _report_start(self, pid: int) -> None:
        name, argv = self.plan.name, self.plan.process.argv
        self._emit(
            ProgramStarted(
                program=name, pid=pid, command=tuple(argv), start_number=self.record.starts
            )
        )
        self._listener.program_started(
            ProgramStart(program=name, kind=self.plan.kind, pid=pid, on_demand=self.plan.on_demand)
        )

    def _process_spec(self) -> ProcessSpec:
        """What to start, with its streams and the address where it may tell us how it is."""
        health = self.plan.health
        beat_interval = (
            health.interval
            if health is not None and isinstance(health.probe, HeartbeatProbe)
            else None
        )
        notify_env = (
            self.notify_socket.environment(beat_interval) if self.notify_socket is not None else {}
        )
        stdin, stdout, stderr = self.streams
        self._was_stable = self._was_unhealthy = False
        return replace(
            self.plan.process,
            env={**self.plan.process.env, **notify_env},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def _on_run_changed(self) -> None:
        """The run has become stable, ready or unhealthy, or is being stopped."""
        assert self.run is not None
        if self.run.stable and (
            self.record.failures
            or self.breaker.failure_times
            or self.breaker.reason
            or self.record.hangs
        ):
            self.backoff.succeeded()
            self.breaker.succeeded()
            self.record.hangs = 0
            self._update_record()
        if self.run.stopping and self.state is ProgramState.UP:
            self._transition(ProgramTransition.STOP_REQUESTED)
        self._on_changed()

    def _spawn_failed(self, error: SpawnError) -> ProcessEnd:
        if self._strict and self.record.starts == 1:
            raise error
        return ProcessEnd(cause=EndCause(EndKind.SPAWN_ERROR), lasted=0.0, detail=str(error))

    # --- after a run ---

    def _decide(self, ending: ProcessEnd) -> RestartDecision:
        stop_requested = self._stop_policy is not None
        facts = self._end_judges.end_facts(self.plan, ending.pid)
        self._is_exempt = facts is not None and facts.is_exempt
        decision = self.plan.restart.decide(
            ending.cause,
            facts=facts,
            shutting_down=stop_requested and self._shutting_down,
            stop_requested=stop_requested,
            killed_unhealthy=self._was_unhealthy,
        )
        self.completed = decision.verdict is EndVerdict.CLEAN_EXIT and not decision.restart
        self.failed = decision.verdict not in _SUCCESS_VERDICTS and not decision.restart
        return decision

    def _trips_breaker(self) -> bool:
        """Record the failure with the breaker; True when that was one too many, or too many
        hangs in a row.
        """
        now = self._clock.wall()
        self.record.hangs = self.record.hangs + 1 if self._was_unhealthy else self.record.hangs
        too_many = self.breaker.failed(now) or self.breaker.state(now) is BreakerState.OPEN
        if self.record.hangs >= max(self.plan.breaker.tolerated, 1):
            self.breaker.trip(
                now, f"{self.record.hangs} runs in a row ended by failed health checks"
            )
            return True
        return too_many

    def _record_end(self, ending: ProcessEnd, decision: RestartDecision, *, restart: bool) -> None:
        """Report and record how a run ended, and make the transition."""
        if not decision.restart:
            self.breaker.trial_aborted()
        now = self._clock.wall()
        self.record.last_end = LastEnd(
            str(ending.cause), decision.verdict.value, now, ending.lasted
        )
        self._report_end(ending, decision.verdict, restart=restart)
        self._update_record()
        final_transition = (
            ProgramTransition.STOPPED
            if decision.verdict in STOP_VERDICTS
            else ProgramTransition.ENDED
        )
        self._transition(ProgramTransition.FAILED if decision.restart else final_transition)

    def _report_end(self, ending: ProcessEnd, verdict: EndVerdict, *, restart: bool) -> None:
        self._emit(
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
        self._listener.program_ended(
            ProgramEnd(
                program=self.plan.name,
                kind=self.plan.kind,
                pid=ending.pid,
                verdict=verdict,
                cause=ending.cause,
                restart=restart,
                killed=ending.killed,
                on_demand=self.plan.on_demand,
            )
        )

    def _on_breaker_tripped(self) -> bool:
        """The breaker has tripped; True if that is the end."""
        self._transition(ProgramTransition.BREAKER_TRIPPED)
        window, reason = self.plan.breaker.window, self.breaker.reason
        restarts = max(len(self.breaker.failure_times) - 1, 0)
        self._emit(
            CircuitBreakerTripped(
                program=self.plan.name, restarts=restarts, window=window, reason=reason
            )
        )
        self._listener.breaker_tripped(BreakerTrip(program=self.plan.name, kind=self.plan.kind))
        self._update_record()
        return self.plan.critical

    async def _back_off(self, ending: ProcessEnd) -> bool:
        """Wait before the next start, after an exempt end not at all; False if a stop was
        requested meanwhile.
        """
        lasted = ending.lasted if self._was_stable else 0.0
        delay = 0.0 if self._is_exempt else self.backoff.failed(lasted=lasted)
        self._update_record()
        in_window = len(self.breaker.failure_times)
        self._emit(
            RestartScheduled(
                program=self.plan.name,
                delay=delay,
                failures=self.backoff.failures,
                restarts_in_window=in_window,
            )
        )
        return await self._schedule_start(delay)

    async def _cool_down(self) -> bool:
        """Stay broken until one trial may be made, or somebody resets it; False if it was told
        to stop meanwhile.
        """
        while not self.breaker.allow_start(self._clock.wall()):
            if not await self._pause(self.breaker.cooldown_remaining(self._clock.wall())):
                return False
        started = await self._schedule_start(0.0)
        if not started:
            self.breaker.trial_aborted()
        return started

    async def _schedule_start(self, delay: float) -> bool:
        if not await self._pause(delay):
            return False
        self.record.record_restart(self._clock.wall())
        self._transition(ProgramTransition.START_DUE)
        return True

    async def _pause(self, seconds: float | None) -> bool:
        """Wait so long, or until called; False if it was told to stop, and then it is stopped."""
        self.next_start = None if seconds is None else self._clock.wall() + seconds
        self._on_changed()
        if self._stop_policy is None:
            interruption = self._await_interruption()
            await (
                interruption
                if seconds is None
                else wait_until_done(interruption, seconds, self._clock)
            )
        self.next_start = None
        if self._stop_policy is not None:
            self._transition(ProgramTransition.STOP_REQUESTED)
            return False
        return True

    # --- small words ---

    def _await_interruption(self) -> asyncio.Future[None]:
        """What `_interrupt` resolves; another one each time it did."""
        if self._interruption is None or self._interruption.done():
            self._interruption = asyncio.get_running_loop().create_future()
        return self._interruption

    def _interrupt(self) -> None:
        if self._interruption is not None and not self._interruption.done():
            self._interruption.set_result(None)

    def _update_record(self) -> None:
        self.record.failures = self.backoff.failures
        self.record.breaker = self.breaker.to_dict()

    def _transition(self, transition: ProgramTransition) -> None:
        self.state, _ = LIFECYCLE.step(self.state, transition)
        self._on_changed()
