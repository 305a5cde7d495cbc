"""The listeners of a supervisor: what they are called with, in which order, and what becomes of
their errors.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ProgramListenerFailed
from longwatch.errors import GuardianLostError
from longwatch.host.process import StopPolicy
from longwatch.supervisor import (
    BackoffPolicy,
    BreakerPolicy,
    EndVerdict,
    ProgramPlan,
    Streams,
    Supervisor,
)
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.program_listener import (
    BreakerTrip,
    ProgramEnd,
    ProgramListener,
    ProgramStart,
    ProgramStop,
)
from longwatch.testing import RecordingObserver
from polling import eventually

TIMEOUT = 30.0
SLEEPER = ["sleep", "1000"]
Call = ProgramStart | ProgramStop | ProgramEnd | BreakerTrip | str


class RecordingListener(ProgramListener):
    """Keeps what it is called with."""

    def __init__(self, calls: list[Call] | None = None) -> None:
        self.calls: list[Call] = [] if calls is None else calls

    def program_started(self, start: ProgramStart) -> None:
        self.calls.append(start)

    def program_stopping(self, stop: ProgramStop) -> None:
        self.calls.append(stop)

    def program_ended(self, end: ProgramEnd) -> None:
        self.calls.append(end)

    def breaker_tripped(self, trip: BreakerTrip) -> None:
        self.calls.append(trip)

    def guardian_lost(self) -> None:
        self.calls.append("guardian lost")


class FailingListener(ProgramListener):
    """Raises at every start and every end."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def program_started(self, start: ProgramStart) -> None:
        raise self.error

    def program_ended(self, end: ProgramEnd) -> None:
        raise ValueError("a second fault")


MakeSupervisor = Callable[..., Supervisor]


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def make(observer: RecordingObserver) -> Iterator[MakeSupervisor]:
    """Makes supervisors that run and are stopped in the end."""
    made: list[Supervisor] = []

    def make_one(plan: ProgramPlan, *listeners: ProgramListener) -> Supervisor:
        supervisor = Supervisor(
            [plan], streams=lambda _: Streams(None, None, None), events=Events(observer)
        )
        made.append(supervisor)
        for listener in listeners:
            supervisor.add_listener(listener)
        supervisor.start()
        return supervisor

    yield make_one
    for supervisor in made:
        supervisor.stop()


def test_a_listener_gets_the_start_the_stop_and_the_end_with_the_kind_of_the_plan(
    make: MakeSupervisor,
) -> None:
    listener = RecordingListener()
    supervisor = make(ProgramPlan.of("a", SLEEPER, kind=ProgramKind.WORKER), listener)
    assert eventually(lambda: len(listener.calls) == 1)
    supervisor.shut_down()
    assert 0 == supervisor.wait(TIMEOUT)
    start, stop, end = listener.calls
    assert isinstance(start, ProgramStart)
    assert ("a", ProgramKind.WORKER) == (start.program, start.kind)
    assert ProgramStop(program="a", kind=ProgramKind.WORKER, pid=start.pid) == stop
    assert isinstance(end, ProgramEnd)
    assert (start.pid, EndVerdict.SHUTDOWN_COMPLETE, signal.SIGTERM, False, 0) == (
        end.pid,
        end.verdict,
        end.cause.number,
        end.restart,
        end.killed,
    )


def test_a_breaker_trips_after_the_end_that_was_one_too_many(make: MakeSupervisor) -> None:
    listener = RecordingListener()
    make(
        ProgramPlan.of(
            "a",
            ["sh", "-c", "exit 3"],
            backoff=BackoffPolicy(initial=0.0),
            breaker=BreakerPolicy(tolerated=1),
        ),
        listener,
    )
    assert eventually(lambda: BreakerTrip in map(type, tuple(listener.calls)))
    kinds = [type(call) for call in listener.calls]
    assert [ProgramStart, ProgramEnd, ProgramStart, ProgramEnd, BreakerTrip] == kinds
    assert [True, False] == [c.restart for c in listener.calls if isinstance(c, ProgramEnd)]


def test_a_program_that_cannot_be_spawned_ends_without_a_pid_and_without_a_start(
    make: MakeSupervisor,
) -> None:
    listener = RecordingListener()
    make(ProgramPlan.of("a", ["/no/such/command"]), listener)
    assert eventually(lambda: bool(listener.calls))
    end = listener.calls[0]
    assert isinstance(end, ProgramEnd)
    assert (None, EndVerdict.SPAWN_ERROR) == (end.pid, end.verdict)


def test_the_loss_of_the_guardian_is_one_call_and_no_end(make: MakeSupervisor) -> None:
    listener = RecordingListener()
    supervisor = make(ProgramPlan.of("a", SLEEPER), listener)
    assert eventually(lambda: len(listener.calls) == 1)
    os.kill(supervisor.guardian.pid or 0, signal.SIGKILL)
    with pytest.raises(GuardianLostError):
        supervisor.wait(TIMEOUT)
    assert ["guardian lost"] == listener.calls[1:]


def test_listeners_are_called_in_the_order_in_which_they_were_added(make: MakeSupervisor) -> None:
    calls: list[Call] = []

    class First(RecordingListener):
        def program_started(self, start: ProgramStart) -> None:
            self.calls.append("first")

    make(ProgramPlan.of("a", SLEEPER), First(calls), RecordingListener(calls))
    assert eventually(lambda: len(calls) == 2)
    assert "first" == calls[0]


def test_a_listener_that_is_added_while_programs_run_gets_what_happens_after_that(
    make: MakeSupervisor,
) -> None:
    first, late = RecordingListener(), RecordingListener()
    supervisor = make(ProgramPlan.of("a", SLEEPER), first)
    assert eventually(lambda: bool(first.calls))
    supervisor.add_listener(late)
    supervisor.shut_down()
    assert 0 == supervisor.wait(TIMEOUT)
    assert first.calls[1:] == late.calls
    assert 2 == len(late.calls)


@pytest.mark.parametrize("error", [RuntimeError("a fault"), SystemExit("an exit")])
def test_a_listener_that_raises_stops_all_programs_with_their_grace_and_fails_the_supervisor(
    make: MakeSupervisor, observer: RecordingObserver, error: BaseException
) -> None:
    """And the listeners after it are called all the same; the first error is the one raised."""
    after = RecordingListener()
    plan = ProgramPlan.of("a", SLEEPER, stop=StopPolicy(signal=signal.SIGINT))
    supervisor = make(plan, FailingListener(error), after)
    with pytest.raises(type(error), match=str(error)):
        supervisor.wait(TIMEOUT)
    _, _, end = after.calls
    assert isinstance(end, ProgramEnd)
    assert (EndVerdict.SHUTDOWN_COMPLETE, signal.SIGINT) == (end.verdict, end.cause.number)
    first, second = observer.of(ProgramListenerFailed)
    assert ("FailingListener", f"{type(error).__name__}: {error}") == (first.listener, first.error)
    assert "ValueError: a second fault" == second.error
