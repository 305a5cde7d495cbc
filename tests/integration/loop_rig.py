"""Loops whose every message, and whose every stop, a test holds in its hands."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from engine_rig import TIMEOUT
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events.base import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.host.background_thread import BackgroundThread
from longwatch.mailbox import Mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext, MainLoopResult
from longwatch.testing import FakeClock, RecordingObserver

NO_BACKOFF = BackoffPolicy(initial=0.0)
"""A message that failed comes back without a wait."""
LOOP_IDLE_THREADS = 4
"""How many threads of a loop that has nothing to do are parked on its clock: fetcher, lease
renewer, sweeper, and the one it runs in.
"""

GROUP_IDLE_THREADS = 3
"""How many threads of a group are parked on its clock besides those of its loops: its own,
watchdog, pulse.
"""


class StartedMessage(NamedTuple):
    """A message that a handler was given."""

    request: Any
    context: MainLoopContext


class GatedLoop(MainLoop[Any, Any]):
    """A loop whose handler waits until the test says how it ends; the answer is the request
    unless that says another.
    """

    def __init__(self, *, requests: Mailbox[Any], **settings: Any) -> None:
        self.observer = RecordingObserver()
        self.started: queue.SimpleQueue[StartedMessage] = queue.SimpleQueue()
        self._ends: dict[Any, queue.SimpleQueue[Callable[[], Any]]] = {}
        self._lock = threading.Lock()
        self._is_open = False
        super().__init__(
            requests=requests, **{"events": Events(self.observer), "retry": NO_BACKOFF, **settings}
        )

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        self.started.put(StartedMessage(request, context))
        return self._outcomes_of(request).get(timeout=10 * TIMEOUT)()

    def next_started(self) -> StartedMessage:
        """The message that begins next."""
        return self.started.get(timeout=TIMEOUT)

    def open(self, *requests: Any) -> None:
        for request in requests:
            self.reply(request, request)

    def reply(self, request: Any, output: Any) -> None:
        self._outcomes_of(request).put(lambda: output)

    def fail(self, request: Any, error: BaseException) -> None:
        self._outcomes_of(request).put(lambda: _raise(error))

    def open_all(self) -> None:
        """Let everything through, now and from now on."""
        with self._lock:
            self._is_open = True
            ends = tuple(self._ends)
        self.open(*ends)

    def _outcomes_of(self, request: Any) -> queue.SimpleQueue[Callable[[], Any]]:
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
        self.started, self.may_end = threading.Event(), threading.Event()
        self.shutdown_timeouts: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.drain_calls: list[str] = []
        self.run_settings: list[dict[str, float]] = []
        self.error: BaseException | None = None
        self.ignores_shutdown = False
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
        self.run_settings.append(
            {"visibility_timeout": visibility_timeout, "wait_time_seconds": wait_time_seconds}
        )
        self._running = True
        self.started.set()
        assert self.may_end.wait(10 * TIMEOUT)
        self._running = False
        if self.error is not None:
            raise self.error

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        self.shutdown_timeouts.put(timeout)
        if not self.ignores_shutdown:
            self.may_end.set()
        return not self.ignores_shutdown

    def drain(self) -> None:
        self.drain_calls.append("drain")

    def resume(self) -> None:
        self.drain_calls.append("resume")

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
class StubGroup:
    """Stubs in a group whose clock stands still."""

    group: LoopGroup
    loops: list[StubLoop]
    clock: FakeClock
    observer: RecordingObserver

    def wait_idle(self, *, parked: int = GROUP_IDLE_THREADS) -> None:
        for loop in self.loops:
            assert loop.started.wait(TIMEOUT)
        self.clock.await_parked(parked)


def stub_group(*loops: StubLoop, clock: FakeClock | None = None, **settings: Any) -> StubGroup:
    clock, observer = clock or FakeClock(), RecordingObserver()
    return StubGroup(
        LoopGroup(loops, clock=clock, events=Events(observer), **settings),
        list(loops),
        clock,
        observer,
    )


class BackgroundRun:
    """A run under way in another thread."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._thread = BackgroundThread(run, name="running")
        self._thread.start()

    @property
    def is_finished(self) -> bool:
        return self._thread.done.is_set()

    def wait(self) -> None:
        """Wait for its end; what it raised is raised here."""
        assert self._thread.done.block(TIMEOUT), "the run did not end"
        if self._thread.error is not None:
            raise self._thread.error


@contextmanager
def running_loop(loop: MainLoop[Any, Any], **settings: Any) -> Iterator[BackgroundRun]:
    """The loop runs within the block; at the end it is let go and has to have ended well."""
    running = BackgroundRun(lambda: loop.run(**settings))
    try:
        yield running
    finally:
        if isinstance(loop, GatedLoop):
            loop.open_all()
        stop_advancing_clock(loop, running)
    running.wait()


@contextmanager
def running_group(group: LoopGroup, **settings: Any) -> Iterator[BackgroundRun]:
    """The same with a group; without signals unless asked for."""
    running = BackgroundRun(lambda: group.run(**{"install_signals": False, **settings}))
    try:
        yield running
    finally:
        for loop in group.loops:
            if isinstance(loop, GatedLoop):
                loop.open_all()
            if isinstance(loop, StubLoop):
                loop.may_end.set()
        stop_advancing_clock(group, running)
    running.wait()


def stop_advancing_clock(loop: MainLoop[Any, Any] | LoopGroup, running: BackgroundRun) -> None:
    """Stop it, and move its clock while it ends, should it be one that stands still."""
    stopping = threading.Thread(target=lambda: loop.shutdown(timeout=1000.0), daemon=True)
    if not running.is_finished:
        stopping.start()
    for _ in range(4000):
        if running.is_finished:
            return
        running._thread.done.block(0.005)
        clock = loop.clock
        if isinstance(clock, FakeClock) and (due := clock._next_due()) < clock.monotonic() + 60:
            clock._wake_due(due)
    raise AssertionError(f"{loop} did not stop")


def pass_time(
    clock: FakeClock, seconds: float, *loops: MainLoop[Any, Any], parked: int = LOOP_IDLE_THREADS
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
    shift = loop._engine._current_run if loop._engine is not None else None
    renewal = shift._lease_renewer._renewal if shift is not None else None
    assert renewal is None or renewal.done.block(TIMEOUT)


def prefetch(loop: MainLoop[Any, Any], count: int) -> None:
    """Have so many messages wait in the loop behind those that run."""
    assert loop._engine is not None
    shift = loop._engine._current_run
    assert shift is not None
    shift.fetcher._prefetch.limit = count
    while len(shift.fetcher.held) < loop.concurrency + count:
        shift._wakeup.set()


def wait_until(condition: Callable[[], bool]) -> None:
    """Other threads are at work: look until they have come so far."""
    end = SystemClock().monotonic() + TIMEOUT
    while not condition():
        assert SystemClock().monotonic() < end, "it did not happen"
        threading.Event().wait(0.001)


def receive_results(mailbox: Mailbox[Any], count: int) -> list[MainLoopResult[Any]]:
    """So many results, as they come; they are acknowledged."""
    found: list[MainLoopResult[Any]] = []
    while len(found) < count:
        messages = mailbox.receive(max_messages=count - len(found), wait_time_seconds=TIMEOUT)
        assert messages, f"{len(found)} of {count} results came"
        mailbox.acknowledge_many(messages)
        found += [message.body for message in messages]
    return found


def _raise(error: BaseException) -> None:
    raise error


def lapse_leases(database: Any, seconds: float) -> None:
    """The leases of all owners end, and no sweep waits for a renewal: the owners do not renew."""
    database.write(lambda tx: tx.execute("UPDATE longwatch_owners SET renew_seconds = NULL"))
    database.jump.lease += seconds
