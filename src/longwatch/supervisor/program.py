"""Keeps one program up: from the request to start it to its final end.

requested → its dependencies are there → run → judge the end ─┬─ done: ended or stopped
                                          ▲                   ├─ back off ──────────┐
                                          │                   └─ too often: broken ─┤ cool down
                                          └─────────────────────────────────────────┘

A run is a process or a container: a `Target`. If the settings must be corrected first (no such
probe script, a name that belongs to another container), the breaker opens without a trial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from longwatch.core.backoff import Backoff
from longwatch.core.breaker import Breaker, BreakerState
from longwatch.core.clock import Clock
from longwatch.core.end_cause import EndCause, EndKind
from longwatch.core.events.base import Events
from longwatch.errors import SpawnError, TargetRefusedError
from longwatch.host.loop import wait_until_done
from longwatch.host.process import KILL_NOW, ProcessEnd, StopPolicy
from longwatch.supervisor.end_judge import EndJudges
from longwatch.supervisor.lifecycle import LIFECYCLE, ProgramState, ProgramTransition
from longwatch.supervisor.notify_socket import Notice, NotifySocket
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.program_listener import ProgramListener
from longwatch.supervisor.program_record import LastEnd, ProgramRecord
from longwatch.supervisor.program_reports import ProgramReports
from longwatch.supervisor.program_run import ProgramRun
from longwatch.supervisor.restart_policy import STOP_VERDICTS, EndVerdict, RestartDecision
from longwatch.supervisor.target import LiveTarget, Target
from longwatch.supervisor.target_factory import INHERITED_STREAMS, Streams, TargetFactory

EXIT_NEEDS_OPERATOR = 100
EXIT_CLEAN_STOP = 0
"""Exit code of a program that was stopped between two runs: there was no process to stop."""
_MAX_EARLY_NOTICES = 16
_SUCCESS_VERDICTS = frozenset(
    {EndVerdict.CLEAN_EXIT, EndVerdict.INTENTIONAL_SIGNAL, *STOP_VERDICTS}
)

DependencyWait = Callable[[], Awaitable[None]]
"""Returns when the dependencies of a program are there."""


async def _no_dependencies() -> None:
    """Return at once: there are no dependencies."""


class Program:
    """Keeps one program up: starts it, judges its ends, waits, and gives up when the breaker trips.

    `keep_up` runs on the event loop and may be called again after it returned. `stop`, `kill`,
    `reset` and `signal` may be called on the loop at any time. Starts and ends are emitted as
    events and passed to the `listener`. `on_changed` is called after every transition.

    A run is *stable* once it was up for `backoff.stable_after` seconds and then passed a health
    check, if it has one. Then backoff, breaker and hang counter start over. With `strict`, a failed
    first start raises SpawnError. `end_judges` has facts about the ends of worker processes.
    """

    def __init__(  # noqa: PLR0913 - a program and its dependencies, most of them optional
        self,
        plan: ProgramPlan,
        *,
        targets: TargetFactory,
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
        """Wall time of the next start, while it waits for that."""
        self.completed = False
        """Whether its last activation ended by itself with success."""
        self.failed = False
        """Whether its last activation ended with a failure and is not restarted."""
        self.streams = streams
        self.notify_socket = notify_socket
        self.last_error = ""
        """Why its last start or run failed, for people; empty after a good end."""
        self._targets = targets
        self._clock = clock
        self._emit = events.emit
        self._listener = listener or ProgramListener()
        self._reports = ProgramReports(self._emit, self._listener)
        self._end_judges = end_judges or EndJudges(events)
        self._on_changed = on_changed
        self._strict = strict
        self._interruption: asyncio.Future[None] | None = None
        self._early_notices: list[Notice] = []
        self._stop_policy: StopPolicy | None = None
        self._shutting_down = False
        self._leaves = False
        """Whether the current stop leaves the container running."""
        self._is_exempt = False
        """Whether the last end counts for neither breaker nor backoff."""
        self._refusal = ""
        """Why no run can work with its settings; empty if one can."""
        self.plan = plan
        self.apply_plan(plan)

    def apply_plan(self, plan: ProgramPlan) -> None:
        """Switch to this plan, as far as a running program can; the rest applies to the next start.
        A program that is broken by a fault of its settings starts once that is corrected.
        """
        saved = self.record.breaker
        is_corrected = plan is not self.plan and bool(self.plan.fault) and not plan.fault
        self.plan = plan
        self.backoff = Backoff(plan.backoff, failures=self.record.failures)
        self.breaker = (
            Breaker(plan.breaker) if saved is None else Breaker.from_dict(plan.breaker, saved)
        )
        if self.run is not None:
            self.breaker.allow_start(self._clock.wall())  # a trial that runs stays a trial
            if plan.fault:
                self.run.refuse(plan.fault)
            elif plan.kind is ProgramKind.CONTAINER:
                self.run.apply_plan(plan)
        if is_corrected:
            self.reset()

    async def keep_up(self, wait_for_dependencies: DependencyWait = _no_dependencies) -> int:
        """Run it until its final end, restarts included; return the exit code to pass on."""
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
            await self.stop_unwatched()
            return EndCause.signal(self.plan.stop.signal).exit_code
        while True:
            ending = await self._run_once()
            if ending.detached and not self._refusal:
                return self._leave_running()
            decision = self._decide(ending)
            tripped = decision.restart and self._trips_breaker()
            self._record_end(ending, decision, restart=decision.restart and not tripped)
            if not decision.restart:
                return ending.cause.exit_code
            if tripped and self._on_breaker_tripped():
                return EXIT_NEEDS_OPERATOR
            if not await (self._cool_down() if tripped else self._back_off(ending)):
                await self.stop_unwatched()
                return EXIT_CLEAN_STOP

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested and is not complete yet."""
        return self._stop_policy is not None

    def target_facts(self) -> dict[str, Any]:
        """Return the facts that only this kind of target has, for `status`."""
        return self._targets.facts(self.plan) if self.run is None else self.run.target.facts()

    # --- requests from outside ---

    def stop(
        self,
        policy: StopPolicy | None = None,
        *,
        shutting_down: bool = True,
        leave: bool = False,
    ) -> None:
        """Stop it: signal, grace, kill. A second call sends no second signal, but may end the grace
        earlier. With `leave`, a container without `stop_on_exit` is left running, unwatched.
        """
        self._stop_policy = policy or self.plan.stop
        self._shutting_down = shutting_down
        self._leaves = leave and self.plan.stays_running
        if self.run is not None:
            self._end_run(self.run, self._stop_policy)
        self._interrupt()

    def _end_run(self, run: ProgramRun, policy: StopPolicy) -> None:
        """Stop the run, or leave it running if that was requested."""
        if not (self._leaves and run.detach()):
            run.stop(policy)

    def kill(self) -> None:
        self.stop(KILL_NOW)

    def signal(self, signum: int) -> None:
        """Pass a signal on to its process group."""
        if self.run is not None:
            self.run.target.signal(signum)

    def reset(self) -> None:
        """Forget its failures. If it is broken or waits for a restart, it starts now."""
        self.breaker.reset()
        self.backoff.succeeded()
        self.record.hangs = self.record.crash_loops = 0
        self._update_record()
        if self.state in (ProgramState.WAITING, ProgramState.BROKEN):
            self._interrupt()

    def clear_liveness_state(self) -> None:
        """Forget failed liveness and crash loops, and start the probes of its run over."""
        self.record.hangs = self.record.crash_loops = 0
        if self.run is not None:
            self.run.restart_probes()

    def handle_notice(self, notice: Notice) -> None:
        """Handle a notice, which may come before the guardian reports the start."""
        if self.run is not None:
            self.run.handle_notice(notice)
        elif self.state is ProgramState.STARTING:
            self._early_notices = [*self._early_notices, notice][-_MAX_EARLY_NOTICES:]

    # --- before a run ---

    async def _wait_to_start(self, wait_for_dependencies: DependencyWait) -> bool:
        """Wait for its dependencies and for an open breaker; False if a stop came."""
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
        """Adopt or start it, watch it, and wait for its end."""
        self._was_stable = self._was_unhealthy = False
        self._refusal = ""
        self._early_notices = []
        if self.notify_socket is not None:
            self.notify_socket.drain()
        try:
            target = await self._bring_up()
        except TargetRefusedError as error:
            self._refusal = str(error)
            return self._spawn_failed(error)
        except SpawnError as error:
            return self._spawn_failed(error)
        if target is None:
            await self.stop_unwatched()
            return ProcessEnd(cause=EndCause.exit(0), lasted=0.0, detached=True)
        self.run, self.last_error = self._new_run(target), ""
        self._transition(ProgramTransition.SPAWNED)
        if self._stop_policy is not None:
            self._end_run(self.run, self._stop_policy)
        try:
            ending = await self.run.watch(self._early_notices)
            return replace(ending, detail=ending.detail or self.run.unhealthy_reason)
        finally:
            self._was_stable, self._was_unhealthy = self.run.stable, bool(self.run.unhealthy_reason)
            self._refusal = self.run.refusal
            self.run = None

    async def _bring_up(self) -> LiveTarget | None:
        """Adopt or start it; None if a stop came first. A stop cancels the start of a container,
        which may wait for its runtime for hours, but not that of a process.
        """
        if self.plan.fault:
            raise TargetRefusedError(self.plan.fault)
        is_patient = self.plan.kind is ProgramKind.CONTAINER
        starting = asyncio.ensure_future(self._adopt_or_start(self._make_target()))
        try:
            while not starting.done() and not (is_patient and self._stop_policy is not None):
                either: set[asyncio.Future[Any]] = {starting, self._await_interruption()}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
        await asyncio.wait({starting})
        return None if starting.cancelled() else starting.result()

    async def _adopt_or_start(self, target: Target) -> LiveTarget:
        if (adopted := await target.adopt()) is not None:
            age = self._clock.monotonic() - adopted.started_at
            self.record.last_start = self.record.last_start or self._clock.wall() - age
            self._reports.adopted(self.plan, adopted.pid or 0, age)
            return adopted
        self.record.starts += 1
        self.record.last_start = self._clock.wall()
        started = await target.start()
        self._reports.started(self.plan, started.pid or 0, self.record.starts)
        return started

    def _new_run(self, target: LiveTarget) -> ProgramRun:
        restarts = self.record.crash_loops
        age = self._clock.monotonic() - target.started_at
        hold = self.plan.probes.hold_after(restarts, age=age)
        if hold:
            self._reports.probing_held(self.plan, hold, restarts)
        return ProgramRun(
            self.plan,
            target,
            clock=self._clock,
            emit=self._emit,
            listener=self._listener,
            on_changed=self._on_run_changed,
            hold=hold,
        )

    def _make_target(self) -> Target:
        """Create the target, with its streams and the address of its notify socket."""
        socket = self.notify_socket
        env = {} if socket is None else socket.environment(self.plan.probes.beat_interval)
        return self._targets.make(self.plan, self.streams, env)

    def _on_run_changed(self) -> None:
        """Handle a run that became stable, ready or unhealthy, or is being stopped."""
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
        if self.run.settled and self.record.crash_loops:
            self.record.crash_loops = 0
        if self.run.stopping and self.state is ProgramState.UP:
            self._transition(ProgramTransition.STOP_REQUESTED)
        self._on_changed()

    def _spawn_failed(self, error: SpawnError) -> ProcessEnd:
        if self._strict and self.record.starts == 1:
            raise error
        return ProcessEnd(cause=EndCause(EndKind.SPAWN_ERROR), lasted=0.0, detail=str(error))

    # --- after a run ---

    def _decide(self, ending: ProcessEnd) -> RestartDecision:
        stop_requested = self._stop_policy is not None or ending.stopped_elsewhere
        facts = self._end_judges.end_facts(self.plan, ending.pid)
        self._is_exempt = facts is not None and facts.is_exempt
        decision = self.plan.restart.decide(
            ending.cause,
            facts=facts,
            shutting_down=stop_requested and self._shutting_down,
            stop_requested=stop_requested,
            killed_unhealthy=self._was_unhealthy,
        )
        if self._refusal and not stop_requested:
            decision = RestartDecision(decision.verdict, restart=True)
        if ending.stopped_elsewhere:
            self.record.desired, self.record.stopped_at = False, self._clock.wall()
        self.completed = decision.verdict is EndVerdict.CLEAN_EXIT and not decision.restart
        self.failed = decision.verdict not in _SUCCESS_VERDICTS and not decision.restart
        return decision

    def _trips_breaker(self) -> bool:
        """Record the failure with the breaker; True if it trips, or if no restart can help."""
        if self._refusal:
            self._trip_for_good(self._refusal)
            return True
        if self._is_exempt:
            return False
        now = self._clock.wall()
        self.record.hangs = self.record.hangs + 1 if self._was_unhealthy else self.record.hangs
        too_many = self.breaker.failed(now) or self.breaker.state(now) is BreakerState.OPEN
        if self.record.hangs >= max(self.plan.breaker.tolerated, 1):
            self.breaker.trip(
                now, f"{self.record.hangs} runs in a row ended by failed health checks"
            )
            return True
        return too_many

    def _trip_for_good(self, reason: str) -> None:
        """Open the breaker until a person resets it."""
        self.breaker.trip(self._clock.wall(), reason, trial=False)
        self.last_error = reason

    async def stop_unwatched(self) -> None:
        """Stop a container that runs unwatched, unless it is to be left running."""
        if not self._leaves:
            await self._make_target().stop_unwatched(self._stop_policy or self.plan.stop)

    def _leave_running(self) -> int:
        if self._leaves:
            self._reports.left_running(self.plan)
        self._transition(ProgramTransition.STOPPED)
        return EXIT_CLEAN_STOP

    def _record_end(self, ending: ProcessEnd, decision: RestartDecision, *, restart: bool) -> None:
        """Report and record how a run ended, and make the transition."""
        if not decision.restart:
            self.breaker.trial_aborted()
        if ending.detached:
            self._reports.left_running(self.plan, self._refusal)
        else:
            self.record.last_end = LastEnd(
                str(ending.cause), decision.verdict.value, self._clock.wall(), ending.lasted
            )
            succeeded = decision.verdict in _SUCCESS_VERDICTS and not ending.survivors
            self.last_error = "" if succeeded else ending.detail
            self._reports.ended(self.plan, ending, decision.verdict, restart=restart)
        self._update_record()
        final_transition = (
            ProgramTransition.STOPPED
            if decision.verdict in STOP_VERDICTS
            else ProgramTransition.ENDED
        )
        self._transition(ProgramTransition.FAILED if decision.restart else final_transition)

    def _on_breaker_tripped(self) -> bool:
        """Handle a tripped breaker; True if the program is given up."""
        self._transition(ProgramTransition.BREAKER_TRIPPED)
        self._reports.breaker_tripped(self.plan, self.breaker)
        self._update_record()
        return self.plan.critical

    async def _back_off(self, ending: ProcessEnd) -> bool:
        """Wait before the next start, unless the end is exempt; False if a stop came."""
        lasted = ending.lasted if self._was_stable else 0.0
        delay = 0.0 if self._is_exempt else self.backoff.failed(lasted=lasted)
        if self._was_unhealthy and self.plan.probes.crash_loop is not None:
            delay, self.record.crash_loops = 0.0, self.record.crash_loops + 1
        self._update_record()
        self._reports.restart_scheduled(self.plan, delay, self.backoff, self.breaker)
        return await self._schedule_start(delay)

    async def _cool_down(self) -> bool:
        """Stay broken until the cool-down is over or a reset comes; False if a stop came."""
        while not self.breaker.allow_start(self._clock.wall()):
            if not await self._pause(self.breaker.cooldown_remaining(self._clock.wall())):
                return False
        started = await self._schedule_start(0.0)
        if not started:
            self.breaker.trial_aborted()
        return started

    async def _schedule_start(self, delay: float) -> bool:
        if is_due := await self._pause(delay):
            self.record.record_restart(self._clock.wall())
            self._transition(ProgramTransition.START_DUE)
        return is_due

    async def _pause(self, seconds: float | None) -> bool:
        """Wait this long, or until interrupted; False if a stop was requested, and then it is
        stopped.
        """
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

    def _await_interruption(self) -> asyncio.Future[None]:
        """Return the future that `_interrupt` resolves; a new one after each interruption."""
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
