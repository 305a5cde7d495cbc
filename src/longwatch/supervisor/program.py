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
from longwatch.core.breaker import Breaker, Phase
from longwatch.core.clock import Clock
from longwatch.core.endcause import EndCause, EndKind
from longwatch.core.events import (
    CircuitBreakerTripped,
    Event,
    Events,
    ProgramEnded,
    ProgramStarted,
    RestartScheduled,
)
from longwatch.errors import SpawnError
from longwatch.host.capture import Sink
from longwatch.host.children import Guardian
from longwatch.host.patience import settled_within
from longwatch.host.process import KILL_NOW, Ending, ProcessSpec, StopPolicy
from longwatch.supervisor.decision import FINAL, Decision, Verdict
from longwatch.supervisor.lifecycle import LIFECYCLE, Move, State
from longwatch.supervisor.memory import LastEnd, Memory
from longwatch.supervisor.notify import Notice, NotifySocket
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probes import HeartbeatProbe
from longwatch.supervisor.run import Run

NEEDS_PERSON = 100
_MOST_EARLY = 16
_GOOD_ENDS = frozenset({Verdict.CLEAN_EXIT, Verdict.INTENTIONAL_SIGNAL, *FINAL})

Gate = Callable[[], Awaitable[None]]
"""Returns when what a program depends on is there."""


class Streams(NamedTuple):
    """Where a program's input comes from and its output goes: as in ProcessSpec."""

    stdin: int | None = None
    stdout: Sink | int | None = 1
    stderr: Sink | int | None = 2


INHERITED = Streams()


async def _open_gate() -> None:
    """Nothing to wait for."""


class Program:
    """Keeps one program up: starts it, judges its ends, waits, gives up when the breaker trips.

    `live` is one story, on the loop; when it is over it may be told again. `stop`, `kill` and
    `reset` may be called on the loop at any time; `signal` passes a signal on. What it does is told
    as events, and `changed` is called after every move. A run is *stable* once it was up for
    `backoff.stable_after` seconds and, if it is health-checked, was found healthy after that;
    backoff, breaker and hang counter then start anew. With `strict`, the very first start must
    work: SpawnError if it does not.
    """

    def __init__(  # noqa: PLR0913 - a program and its surroundings, most of them optional
        self,
        plan: ProgramPlan,
        *,
        guardian: Guardian,
        clock: Clock,
        events: Events,
        streams: Streams = INHERITED,
        memory: Memory | None = None,
        notify: NotifySocket | None = None,
        changed: Callable[[], None] = lambda: None,
        strict: bool = False,
    ) -> None:
        self.state = State.STOPPED
        self.run: Run | None = None
        self.memory = memory or Memory()
        self.next_start: float | None = None
        """Wall time of the next start while it waits for it."""
        self.completed = False
        """Whether its last life came to a good end by itself."""
        self.failed = False
        """Whether its last life came to a bad end that nothing is done about."""
        self.streams = streams
        self.notify = notify
        self._guardian = guardian
        self._clock = clock
        self._events = events
        self._changed = changed
        self._strict = strict
        self._called: asyncio.Future[None] | None = None
        self._early: list[Notice] = []
        self._unwanted: StopPolicy | None = None
        self._shutting_down = False
        self.follow(plan)

    def follow(self, plan: ProgramPlan) -> None:
        """Go by this plan from now on: what can change as it runs does, the rest with the next
        start.
        """
        known = self.memory.breaker
        self.plan = plan
        self.backoff = Backoff(plan.backoff, failures=self.memory.failures)
        self.breaker = (
            Breaker(plan.breaker) if known is None else Breaker.from_dict(plan.breaker, known)
        )
        if self.run is not None:
            self.breaker.admits(self._clock.wall())  # a trial that is under way stays one

    async def live(self, gate: Gate = _open_gate) -> int:
        """From being wanted to an end that is final; returns the exit code to pass on."""
        try:
            return await self._live(gate)
        finally:
            self._unwanted, self._called = None, None

    async def _live(self, gate: Gate) -> int:
        if self._unwanted is not None:
            return EndCause.signal(self._unwanted.signal).exit_code
        self.completed = self.failed = False
        self._move(Move.WANTED)
        if not await self._admitted(gate):
            return EndCause.signal(self.plan.stop.signal).exit_code
        while True:
            ending = await self._run_once()
            decision = self._judge(ending)
            broken = decision.restart and self._breaks()
            self._conclude(ending, decision, restart=decision.restart and not broken)
            if not decision.restart:
                return ending.cause.exit_code
            if broken and self._give_up():
                return NEEDS_PERSON
            if not await (self._cool_down() if broken else self._back_off(ending)):
                return ending.cause.exit_code

    @property
    def unwanted(self) -> bool:
        """Whether its present life was told to end."""
        return self._unwanted is not None

    # --- told from outside ---

    def stop(self, policy: StopPolicy | None = None, *, shutting_down: bool = True) -> None:
        """End its life: signal, grace, kill. A second call hastens the first with the policy it
        brings.
        """
        self._unwanted = policy or self.plan.stop
        self._shutting_down = shutting_down
        if self.run is not None:
            self.run.stop(self._unwanted)
        self._call()

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
        self.memory.hangs = 0
        self._remember()
        if self.state in (State.WAITING, State.BROKEN):
            self._call()

    def hear(self, notice: Notice) -> None:
        """What it says on its notify socket; a quick one says it before we have heard that it
        runs.
        """
        if self.run is not None:
            self.run.hear(notice)
        elif self.state is State.STARTING:
            self._early = [*self._early, notice][-_MOST_EARLY:]

    # --- before a run ---

    async def _admitted(self, gate: Gate) -> bool:
        """Wait for what it depends on, and for an open breaker that was remembered; False if it
        was told to stop meanwhile.
        """
        waiting = asyncio.ensure_future(gate())
        try:
            while not waiting.done() and self._unwanted is None:
                await asyncio.wait(
                    {waiting, self._awaited_call()}, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            waiting.cancel()
        if self._unwanted is not None:
            self._move(Move.UNWANTED)
            return False
        if not self.breaker.admits(self._clock.wall()):
            self._move(Move.TRIPPED)
            return await self._cool_down()
        self._move(Move.DUE)
        return True

    # --- one run ---

    async def _run_once(self) -> Ending:
        """Start it, watch it, wait for its end."""
        self.memory.starts += 1
        self.memory.last_start = self._clock.wall()
        process = self._process()
        if self.notify is not None:
            self.notify.drain()
        self._early = []
        try:
            child = await self._guardian.spawn(process)
        except SpawnError as error:
            return self._spawn_failed(error)
        self.run = Run(
            self.plan, child, clock=self._clock, tell=self._tell, changed=self._run_changed
        )
        command, start = tuple(self.plan.process.argv), self.memory.starts
        self._tell(
            ProgramStarted(program=self.plan.name, pid=child.pid, command=command, start=start)
        )
        self._move(Move.SPAWNED)
        if self._unwanted is not None:
            self.run.stop(self._unwanted)
        try:
            ending = await self.run.to_its_end(self._guardian, process, self._early)
            return replace(ending, detail=ending.detail or self.run.sick)
        finally:
            self._stable, self._sick = self.run.stable, bool(self.run.sick)
            self.run = None

    def _process(self) -> ProcessSpec:
        """What to start, with its streams and the address where it may tell us how it is."""
        health = self.plan.health
        beats = (
            health.interval
            if health is not None and isinstance(health.probe, HeartbeatProbe)
            else None
        )
        told = self.notify.environment(beats) if self.notify is not None else {}
        stdin, stdout, stderr = self.streams
        self._stable = self._sick = False
        return replace(
            self.plan.process,
            env={**self.plan.process.env, **told},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def _run_changed(self) -> None:
        """The run has become stable, ready or sick, or is being stopped."""
        assert self.run is not None
        if self.run.stable and (
            self.memory.failures or self.breaker.events or self.breaker.reason or self.memory.hangs
        ):
            self.backoff.succeeded()
            self.breaker.succeeded()
            self.memory.hangs = 0
            self._remember()
        if self.run.stopping and self.state is State.UP:
            self._move(Move.UNWANTED)
        self._changed()

    def _spawn_failed(self, error: SpawnError) -> Ending:
        if self._strict and self.memory.starts == 1:
            raise error
        return Ending(cause=EndCause(EndKind.SPAWN_ERROR), lasted=0.0, detail=str(error))

    # --- after a run ---

    def _judge(self, ending: Ending) -> Decision:
        unwanted = self._unwanted is not None
        decision = self.plan.restart.decide(
            ending.cause,
            shutting_down=unwanted and self._shutting_down,
            unwanted=unwanted,
            killed_sick=self._sick,
        )
        self.completed = decision.verdict is Verdict.CLEAN_EXIT and not decision.restart
        self.failed = decision.verdict not in _GOOD_ENDS and not decision.restart
        return decision

    def _breaks(self) -> bool:
        """Record the failure with the breaker; True when that was one too many, or too many
        hangs in a row.
        """
        now = self._clock.wall()
        self.memory.hangs = self.memory.hangs + 1 if self._sick else self.memory.hangs
        too_many = self.breaker.failed(now) or self.breaker.phase(now) is Phase.OPEN
        if self.memory.hangs >= max(self.plan.breaker.tolerated, 1):
            self.breaker.trip(
                now, f"{self.memory.hangs} runs in a row ended by failed health checks"
            )
            return True
        return too_many

    def _conclude(self, ending: Ending, decision: Decision, *, restart: bool) -> None:
        """Tell and remember how a run ended, and move on."""
        if not decision.restart:
            self.breaker.undecided()
        now = self._clock.wall()
        self.memory.last_end = LastEnd(
            str(ending.cause), decision.verdict.value, now, ending.lasted
        )
        self._tell(
            ProgramEnded(
                program=self.plan.name,
                pid=ending.pid,
                verdict=decision.verdict,
                cause=ending.cause,
                lasted=ending.lasted,
                restart=restart,
                killed=ending.killed,
                survivors=ending.survivors,
                detail=ending.detail,
            )
        )
        self._remember()
        ended = Move.STOPPED if decision.verdict in FINAL else Move.ENDED
        self._move(Move.FAILED if decision.restart else ended)

    def _give_up(self) -> bool:
        """The breaker has tripped; True if that is the end."""
        self._move(Move.TRIPPED)
        window, reason = self.plan.breaker.window, self.breaker.reason
        restarts = max(len(self.breaker.events) - 1, 0)
        self._tell(
            CircuitBreakerTripped(
                program=self.plan.name, restarts=restarts, window=window, reason=reason
            )
        )
        self._remember()
        return self.plan.critical

    async def _back_off(self, ending: Ending) -> bool:
        """Wait before the next start; False if it was told to stop meanwhile."""
        delay = self.backoff.failed(lasted=ending.lasted if self._stable else 0.0)
        self._remember()
        in_window = len(self.breaker.events)
        self._tell(
            RestartScheduled(
                program=self.plan.name,
                delay=delay,
                failures=self.backoff.failures,
                restarts_in_window=in_window,
            )
        )
        return await self._next_start_in(delay)

    async def _cool_down(self) -> bool:
        """Stay broken until one trial may be made, or somebody resets it; False if it was told
        to stop meanwhile.
        """
        while not self.breaker.admits(self._clock.wall()):
            if not await self._pause(self.breaker.cooldown_left(self._clock.wall())):
                return False
        started = await self._next_start_in(0.0)
        if not started:
            self.breaker.undecided()
        return started

    async def _next_start_in(self, delay: float) -> bool:
        if not await self._pause(delay):
            return False
        self.memory.note_restart(self._clock.wall())
        self._move(Move.DUE)
        return True

    async def _pause(self, seconds: float | None) -> bool:
        """Wait so long, or until called; False if it was told to stop, and then it is stopped."""
        self.next_start = None if seconds is None else self._clock.wall() + seconds
        self._changed()
        if self._unwanted is None:
            called = self._awaited_call()
            await (called if seconds is None else settled_within(called, seconds, self._clock))
        self.next_start = None
        if self._unwanted is not None:
            self._move(Move.UNWANTED)
            return False
        return True

    # --- small words ---

    def _awaited_call(self) -> asyncio.Future[None]:
        """What `_call` resolves; another one each time it did."""
        if self._called is None or self._called.done():
            self._called = asyncio.get_running_loop().create_future()
        return self._called

    def _call(self) -> None:
        if self._called is not None and not self._called.done():
            self._called.set_result(None)

    def _remember(self) -> None:
        self.memory.failures = self.backoff.failures
        self.memory.breaker = self.breaker.to_dict()

    def _move(self, move: Move) -> None:
        self.state, _ = LIFECYCLE.step(self.state, move)
        self._changed()

    def _tell(self, event: Event) -> None:
        self._events.emit(event)
