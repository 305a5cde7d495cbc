"""Loops whose every message, and whose every stop, a test holds in its hands."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from engine_rig import PATIENCE
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.host.errand import Errand
from longwatch.mailbox import Mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext, MainLoopResult
from longwatch.testing import FakeClock, RecordingObserver

AT_ONCE = BackoffPolicy(initial=0.0)
"""A message that failed comes back without a wait."""
LOOP_RESTING = 4
"""How many threads of a loop that has nothing to do are parked on its clock: feeder, keeper,
sweeper, and the one it runs in.
"""

GROUP_RESTING = 3
"""How many threads of a group are parked on its clock besides those of its loops: its own,
watchdog, pulse.
"""


class Begun(NamedTuple):
    """A message that a handler was given."""

    request: Any
    context: MainLoopContext


class GatedLoop(MainLoop[Any, Any]):
    """A loop whose handler waits until the test says how it ends; the answer is the request
    unless that says another.
    """

    def __init__(self, *, requests: Mailbox[Any], **settings: Any) -> None:
        self.observer = RecordingObserver()
        self.began: queue.SimpleQueue[Begun] = queue.SimpleQueue()
        self._ends: dict[Any, queue.SimpleQueue[Callable[[], Any]]] = {}
        self._lock = threading.Lock()
        self._is_open = False
        super().__init__(
            requests=requests, **{"events": Events(self.observer), "retry": AT_ONCE, **settings}
        )

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        self.began.put(Begun(request, context))
        return self._end_of(request).get(timeout=10 * PATIENCE)()

    def next(self) -> Begun:
        """The message that begins next."""
        return self.began.get(timeout=PATIENCE)

    def open(self, *requests: Any) -> None:
        for request in requests:
            self.answer(request, request)

    def answer(self, request: Any, output: Any) -> None:
        self._end_of(request).put(lambda: output)

    def fail(self, request: Any, error: BaseException) -> None:
        self._end_of(request).put(lambda: _raise(error))

    def open_for_all(self) -> None:
        """Let everything through, now and from now on."""
        with self._lock:
            self._is_open = True
            ends = tuple(self._ends)
        self.open(*ends)

    def _end_of(self, request: Any) -> queue.SimpleQueue[Callable[[], Any]]:
        with self._lock:
            end = self._ends.setdefault(request, queue.SimpleQueue())
            if self._is_open:
                end.put(lambda: request)
            return end


class StubLoop:
    """A Runnable that does nothing; each run, each shutdown and each end is the test's."""

    def __init__(
        self,
        name: str | None = None,
        *,
        clock: Clock | None = None,
        shutdown_timeout: float | None = None,
    ) -> None:
        self.name = name
        self.shutdown_timeout = shutdown_timeout
        self.heartbeat = Heartbeat(clock)
        self.began, self.may_end = threading.Event(), threading.Event()
        self.told: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.wishes: list[str] = []
        self.settings: list[dict[str, float]] = []
        self.error: BaseException | None = None
        self.is_stubborn = False
        """Whether it goes on when it is told to stop."""
        self._running = False

    @property
    def running(self) -> bool:
        return self._running

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        self.settings.append(
            {"visibility_timeout": visibility_timeout, "wait_time_seconds": wait_time_seconds}
        )
        self._running = True
        self.began.set()
        assert self.may_end.wait(10 * PATIENCE)
        self._running = False
        if self.error is not None:
            raise self.error

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        self.told.put(timeout)
        if not self.is_stubborn:
            self.may_end.set()
        return not self.is_stubborn

    def drain(self) -> None:
        self.wishes.append("drain")

    def resume(self) -> None:
        self.wishes.append("resume")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()


@dataclass
class Company:
    """Stubs in a group whose clock stands still."""

    group: LoopGroup
    loops: list[StubLoop]
    clock: FakeClock
    observer: RecordingObserver

    def settle_down(self, *, parked: int = GROUP_RESTING) -> None:
        for loop in self.loops:
            assert loop.began.wait(PATIENCE)
        self.clock.await_parked(parked)


def company(*loops: StubLoop, clock: FakeClock | None = None, **settings: Any) -> Company:
    clock, observer = clock or FakeClock(), RecordingObserver()
    return Company(
        LoopGroup(loops, clock=clock, events=Events(observer), **settings),
        list(loops),
        clock,
        observer,
    )


class Running:
    """A run under way in another thread."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._errand = Errand(run, name="running")
        self._errand.start()

    @property
    def over(self) -> bool:
        return self._errand.over.is_set()

    def end(self) -> None:
        """Wait for its end; what it raised is raised here."""
        assert self._errand.over.block(PATIENCE), "the run did not end"
        if self._errand.error is not None:
            raise self._errand.error


@contextmanager
def looping(loop: MainLoop[Any, Any], **settings: Any) -> Iterator[Running]:
    """The loop runs within the block; at the end it is let go and has to have ended well."""
    running = Running(lambda: loop.run(**settings))
    try:
        yield running
    finally:
        if isinstance(loop, GatedLoop):
            loop.open_for_all()
        stop_by_moving(loop, running)
    running.end()


@contextmanager
def grouping(group: LoopGroup, **settings: Any) -> Iterator[Running]:
    """The same with a group; without signals unless asked for."""
    running = Running(lambda: group.run(**{"install_signals": False, **settings}))
    try:
        yield running
    finally:
        for loop in group.loops:
            if isinstance(loop, GatedLoop):
                loop.open_for_all()
            if isinstance(loop, StubLoop):
                loop.may_end.set()
        stop_by_moving(group, running)
    running.end()


def stop_by_moving(loop: MainLoop[Any, Any] | LoopGroup, running: Running) -> None:
    """Stop it, and move its clock while it ends, should it be one that stands still."""
    stopping = threading.Thread(target=lambda: loop.shutdown(timeout=1000.0), daemon=True)
    if not running.over:
        stopping.start()
    for _ in range(4000):
        if running.over:
            return
        running._errand.over.block(0.005)
        clock = loop.clock
        if isinstance(clock, FakeClock) and (due := clock._next_due()) < clock.monotonic() + 60:
            clock._wake_due(due)
    raise AssertionError(f"{loop} did not stop")


def pass_time(
    clock: FakeClock, seconds: float, *loops: MainLoop[Any, Any], parked: int = LOOP_RESTING
) -> None:
    """Move time no faster than the store answers: a renewal is not on the clock, and time would
    outrun it.
    """
    end = clock.monotonic() + seconds
    while (now := clock.monotonic()) < end:
        for loop in loops:
            _await_renewal(loop)
        clock.await_parked(parked)
        clock.advance(min(max(clock._next_due() - now, 0.0), end - now), parked=parked)
    clock.await_parked(parked)


def _await_renewal(loop: MainLoop[Any, Any]) -> None:
    shift = loop._engine._shift if loop._engine is not None else None
    renewal = shift._keeper._renewal if shift is not None else None
    assert renewal is None or renewal.over.block(PATIENCE)


def hold_ahead(loop: MainLoop[Any, Any], count: int) -> None:
    """Have so many messages wait in the loop behind those that run."""
    assert loop._engine is not None
    shift = loop._engine._shift
    assert shift is not None
    shift.feeder._ahead.ahead = count
    while len(shift.feeder.held) < loop.concurrency + count:
        shift._news.set()


def await_that(holds: Callable[[], bool]) -> None:
    """Other threads are at work: look until they have come so far."""
    end = SystemClock().monotonic() + PATIENCE
    while not holds():
        assert SystemClock().monotonic() < end, "it did not happen"
        threading.Event().wait(0.001)


def results(mailbox: Mailbox[Any], count: int) -> list[MainLoopResult[Any]]:
    """So many results, as they come; they are acknowledged."""
    found: list[MainLoopResult[Any]] = []
    while len(found) < count:
        messages = mailbox.receive(max_messages=count - len(found), wait_time_seconds=PATIENCE)
        assert messages, f"{len(found)} of {count} results came"
        mailbox.acknowledge_many(messages)
        found += [message.body for message in messages]
    return found


def _raise(error: BaseException) -> None:
    raise error
