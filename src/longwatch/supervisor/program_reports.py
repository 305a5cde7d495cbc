"""Reports changes of a program: as an event for observers, then to the listeners that act."""

from __future__ import annotations

from collections.abc import Callable

from longwatch.core.backoff import Backoff
from longwatch.core.breaker import Breaker
from longwatch.core.events.base import Event
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    ProbingHeld,
    ProgramAdopted,
    ProgramEnded,
    ProgramLeftRunning,
    ProgramStarted,
    RestartScheduled,
)
from longwatch.host.process import ProcessEnd
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program_listener import (
    BreakerTrip,
    ProgramEnd,
    ProgramListener,
    ProgramStart,
)
from longwatch.supervisor.restart_policy import EndVerdict


class ProgramReports:
    """Emits the events of one program and calls its listener. Used on the event loop."""

    def __init__(self, emit: Callable[[Event], None], listener: ProgramListener) -> None:
        self._emit = emit
        self._listener = listener

    def started(self, plan: ProgramPlan, pid: int, start_number: int) -> None:
        self._emit(
            ProgramStarted(
                program=plan.name, pid=pid, command=plan.command, start_number=start_number
            )
        )
        self._call_started(plan, pid)

    def adopted(self, plan: ProgramPlan, pid: int, age: float) -> None:
        self._emit(ProgramAdopted(program=plan.name, pid=pid, age=age))
        self._call_started(plan, pid)

    def _call_started(self, plan: ProgramPlan, pid: int) -> None:
        self._listener.program_started(
            ProgramStart(program=plan.name, kind=plan.kind, pid=pid, on_demand=plan.on_demand)
        )

    def left_running(self, plan: ProgramPlan, reason: str = "") -> None:
        self._emit(ProgramLeftRunning(program=plan.name, reason=reason))

    def ended(
        self, plan: ProgramPlan, ending: ProcessEnd, verdict: EndVerdict, *, restart: bool
    ) -> None:
        self._emit(
            ProgramEnded(
                program=plan.name,
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
                program=plan.name,
                kind=plan.kind,
                pid=ending.pid,
                verdict=verdict,
                cause=ending.cause,
                restart=restart,
                killed=ending.killed,
                on_demand=plan.on_demand,
            )
        )

    def breaker_tripped(self, plan: ProgramPlan, breaker: Breaker) -> None:
        self._emit(
            CircuitBreakerTripped(
                program=plan.name,
                restarts=max(len(breaker.failure_times) - 1, 0),
                window=plan.breaker.window,
                reason=breaker.reason,
            )
        )
        self._listener.breaker_tripped(BreakerTrip(program=plan.name, kind=plan.kind))

    def restart_scheduled(
        self, plan: ProgramPlan, delay: float, backoff: Backoff, breaker: Breaker
    ) -> None:
        self._emit(
            RestartScheduled(
                program=plan.name,
                delay=delay,
                failures=backoff.failures,
                restarts_in_window=len(breaker.failure_times),
            )
        )

    def probing_held(self, plan: ProgramPlan, seconds: float, restarts: int) -> None:
        self._emit(ProbingHeld(program=plan.name, seconds=seconds, restarts=restarts))
