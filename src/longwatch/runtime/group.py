"""A group of loops in one process: started together, watched together, stopped together.

The story of a run
    signals are caught → the health port is open → every loop has its thread → the watchdog watches
    → whoever supervises us is told … somebody asks for the end, a loop crashes, or all loops are
    done … not ready any more → every loop is told to stop, at once, with its limit → all are waited
    for, under the latest of these → watchdog and health end → what was caught before us is put back

How it ends
    all stopped in time      run returns
    a loop crashed           its error is raised, after the others have stopped
    a limit has passed       with signals installed: stacks on record, exit 1; else
                             ShutdownTimeoutError, and threads left behind
    a second signal          exit 128 + n, at once
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import (
    GroupDraining,
    GroupResumed,
    GroupStarted,
    GroupStopped,
    GroupStopping,
    SignalHandlersSkipped,
    TimeoutsMismatched,
)
from longwatch.engine.event_logging import logged_events
from longwatch.engine.exclusive import ExclusiveLock
from longwatch.engine.policy import EngineEnvironment
from longwatch.engine.run_guard import RunGuard, RunHandle, max_wait
from longwatch.errors import ShutdownTimeoutError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.crash_file import CrashFile
from longwatch.host.health_server import Exposition, HealthServer
from longwatch.host.parent_channel import ParentChannel
from longwatch.host.runnable import Runnable
from longwatch.host.runtime_dir import runtime_directory
from longwatch.host.sdnotify import SdNotifier
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.host.signals import SignalStream, catch_signals
from longwatch.host.watchdog import BeatAge, Watchdog
from longwatch.runtime.health_checks import GroupHealth
from longwatch.runtime.loop_runner import LoopRunner
from longwatch.runtime.status_reporter import EventMetrics, StatusReporter
from longwatch.runtime.timeout_checks import Timeouts

READINESS_FRACTION = 0.9
"""Of the watchdog's threshold: a loop that is silent for longer is not ready, so that traffic
leaves before the kill.
"""
_PARENT_KILL_MARGIN = 10.0
"""Seconds that a parent has to end a process that stalls, before its own watchdog does."""
_REPORT_MARGIN = 0.25
"""Seconds that a loop has, after its limit, to say that it did not make it."""


class LoopGroup:
    """Runs loops, each in its thread, with a watchdog and a health port over all of them; `run`
    blocks until they have ended.

    `health_port` None: no health port. `watchdog_threshold` None: no watchdog.
    `readiness_threshold` None: nine tenths of the watchdog's. `max_processing_seconds` is what one
    message takes at the most; only to warn of timeouts that do not go together. `metrics` is what
    `/metrics` says: a `longwatch.observe.Metrics`, or any callable that returns the exposition.
    Making a group starts nothing and opens nothing.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        loops: Iterable[Runnable],
        *,
        shutdown_timeout: float = 30.0,
        health_port: int | None = None,
        health_host: str = "0.0.0.0",  # noqa: S104 - health is asked from outside
        watchdog_threshold: float | None = 720.0,
        watchdog_interval: float = 60.0,
        readiness_threshold: float | None = None,
        max_processing_seconds: float = 600,
        metrics: Exposition | EventMetrics | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.loops = tuple(loops)
        self.names = _names(self.loops)
        self.shutdown_timeout = shutdown_timeout
        self.health_port = health_port
        self.health_host = health_host
        self.watchdog_threshold = watchdog_threshold
        self.watchdog_interval = watchdog_interval
        self.readiness_threshold = readiness_threshold
        self.max_processing_seconds = max_processing_seconds
        self.metrics = metrics
        self.clock = clock or SystemClock()
        self.events = events or logged_events()
        self.uses_default_events = events is None
        """Whether nobody has said where its events go."""
        self.health: GroupHealth | None = None
        """How its loops are, while it runs."""
        self.before_exit: Callable[[], object] = lambda: None
        """Called before the process is ended from here: to write out what was logged."""
        self._parent: ParentChannel | None = None
        self._run_guard = RunGuard("this group", self.clock)
        self._health_server: HealthServer | None = None
        self._draining = False
        self._stopping = False
        self._stopped_in_time = True
        self._timeouts(visibility=1800, wait=0).validate()

    # --- from any thread ---

    @property
    def running(self) -> bool:
        return self._run_guard.current is not None

    @property
    def draining(self) -> bool:
        """Whether it takes nothing any more, for a while or for good."""
        return self._draining or self._stopping

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Where the health port really is; None if there is none at present."""
        return None if self._health_server is None else self._health_server.address

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """Stop all loops and have `run` return; whether all did in their time. `timeout` caps every
        loop's own limit.

        Before the first run: that one returns at once. From a loop's own thread it cannot wait, and
        returns False.
        """
        run_handle = self._run_guard.request_stop(Deadline.after(timeout, self.clock))
        if run_handle is None:
            return True
        if self._in_own_thread():
            return False
        self.clock.wait(run_handle.ended)
        return self._stopped_in_time

    def drain(self) -> None:
        """Take nothing more and hand back what was not begun, until `resume` or the end of the run;
        what runs goes on, and the process stays. Before a run: it begins so.
        """
        self._draining = True
        self._forward("drain")
        self.events.emit(GroupDraining())

    def resume(self) -> None:
        """Take messages again; nothing once it is being stopped."""
        if self._stopping:
            return
        self._draining = False
        self._forward("resume")
        self.events.emit(GroupResumed())

    def set_parent(self, parent: ParentChannel) -> None:
        """Have this parent renew the leases and answer for health: for worker processes of ours,
        before `run`.
        """
        self._parent = parent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # --- a run ---

    def run(
        self,
        *,
        install_signals: bool = True,
        visibility_timeout: float = 1800,
        wait_time_seconds: float = 30,
    ) -> None:
        """Run the loops until all have ended; blocks. With `install_signals`, SIGTERM and SIGINT
        stop it, SIGUSR1 drains it, and SIGUSR2 writes all stacks to the crash file.
        """
        timeouts = self._timeouts(visibility=visibility_timeout, wait=wait_time_seconds)
        timeouts.validate()
        for problem in timeouts.problems(parent_renews=self._parent is not None):
            self.events.emit(TimeoutsMismatched(setting=problem.setting, problem=problem.problem))
        with self._run_guard.run() as run_handle:
            if run_handle.is_stopping:
                return
            self._stopping, self._stopped_in_time = False, True
            with self._handle_signals(run_handle, install_signals) as coordinator:
                _GroupRun(self, run_handle, coordinator=coordinator).run(
                    visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds
                )

    def _timeouts(self, *, visibility: float, wait: float) -> Timeouts:
        return Timeouts(
            threshold=self.watchdog_threshold,
            interval=self.watchdog_interval,
            wait=wait,
            visibility=visibility,
            shutdown=self.shutdown_timeout,
            processing=self.max_processing_seconds,
        )

    def _in_own_thread(self) -> bool:
        health = self.health
        return health is not None and any(runner.in_own_thread for runner in health.runners)

    def _forward(self, action: str) -> None:
        health = self.health
        for runner in health.runners if health is not None else ():
            runner.forward(action)

    # --- signals ---

    @contextmanager
    def _handle_signals(
        self,
        run_handle: RunHandle,
        install: bool,  # noqa: FBT001 - as it was asked for
    ) -> Iterator[ShutdownCoordinator | None]:
        if not install:
            yield None
        elif threading.current_thread() is not threading.main_thread():
            self.events.emit(SignalHandlersSkipped())
            yield None
        else:
            with (
                _shutdown_coordinator(self.events) as coordinator,
                catch_signals((signal.SIGUSR1,)) as stream,
            ):
                BackgroundThread(
                    lambda: self._drain_on_signal(stream), name="longwatch-drain"
                ).start()
                stop = run_handle.stop_requested.set
                coordinator.register(stop)
                try:
                    yield coordinator
                finally:
                    coordinator.unregister(stop)

    def _drain_on_signal(self, stream: SignalStream) -> None:
        for _ in stream:
            self.drain()


@contextmanager
def _shutdown_coordinator(events: Events) -> Iterator[ShutdownCoordinator]:
    """The installed one; if there is none, one for as long as this takes."""
    present = ShutdownCoordinator.get()
    coordinator = present or ShutdownCoordinator.install(events=events)
    try:
        yield coordinator
    finally:
        if present is None:
            ShutdownCoordinator.reset()


class _GroupRun:
    """One run of a group, from the first thread to the last."""

    def __init__(
        self, group: LoopGroup, run_handle: RunHandle, *, coordinator: ShutdownCoordinator | None
    ) -> None:
        self._group = group
        self._run_handle = run_handle
        self._coordinator = coordinator
        self._clock = group.clock
        self._events = group.events
        self._parent = group._parent  # noqa: SLF001 - a run is the group at work
        self._notifier = SdNotifier.from_environment()
        self._crash_file = CrashFile("group", clock=group.clock)
        self._changed = Wakeup()
        self._started_at = group.clock.monotonic()
        self._runners = self._make_runners()
        threshold, interval = group.watchdog_threshold, group.watchdog_interval
        self._health = GroupHealth(
            self._runners,
            is_draining=lambda: group.draining,
            stale_after=_readiness_threshold(group),
            not_live_after=None if threshold is None else threshold + 2 * interval,
            clock=group.clock,
            events=group.events,
        )

    def run(self, *, visibility_timeout: float, wait_time_seconds: float) -> None:
        group = self._group
        group.health = self._health
        if group._draining:  # noqa: SLF001 - as above
            group._forward("drain")  # noqa: SLF001 - as above
        try:
            with ExitStack() as undo:
                self._open(undo)
                with self._stopping_loops():
                    for runner in self._runners:
                        runner.start(
                            visibility_timeout=visibility_timeout,
                            wait_time_seconds=wait_time_seconds,
                        )
                    self._start_monitors(undo)
                    self._report_started()
                    self._wait()
            self._finish()
        finally:
            group.health, group._draining = None, False  # noqa: SLF001 - as above

    @contextmanager
    def _stopping_loops(self) -> Iterator[None]:
        """Whatever comes in between, no loop is left running that could be stopped."""
        reason = "failed"
        try:
            yield
            reason = self._stop_reason()
        finally:
            self._stop_loops(reason)
            self._save_stacks()

    # --- beginning ---

    def _make_runners(self) -> list[LoopRunner]:
        exclusive_lock = ExclusiveLock()
        runners: list[LoopRunner] = []
        for loop, name in zip(self._group.loops, self._group.names, strict=True):
            attach: Callable[[EngineEnvironment], None] | None = getattr(loop, "attach", None)
            if attach is not None:
                attach(
                    EngineEnvironment(
                        name=name,
                        events=self._events,
                        exclusive_lock=exclusive_lock,
                        parent=self._parent,
                    )
                )
            runners.append(
                LoopRunner(
                    loop, name, clock=self._clock, events=self._events, on_change=self._changed.set
                )
            )
        return runners

    def _open(self, undo: ExitStack) -> None:
        """What has to be there before anything runs; what cannot be had is told now."""
        self._open_crash_file()
        stacks_signal = signal.SIGUSR2 if self._coordinator is not None else None
        undo.callback(self._crash_file.close, signum=stacks_signal)
        if stacks_signal is not None:
            self._crash_file.dump_on_signal(stacks_signal)
        metrics = self._group.metrics
        if isinstance(metrics, EventMetrics):
            undo.callback(self._events.subscribe(metrics.observe))
            undo.callback(
                metrics.add_gauges(
                    self._health.gauges if self._parent is not None else self._health.all_gauges
                )
            )
        if self._group.health_port is not None and self._parent is None:
            self._start_health_server(undo, self._group.health_port)

    def _open_crash_file(self) -> None:
        """Where it was asked for, else where every user can have one: nothing should fail
        because its last words have no place.
        """
        try:
            self._crash_file.open()
        except UsageError:
            self._crash_file = CrashFile("group", directory=runtime_directory(), clock=self._clock)
            self._crash_file.open()

    def _start_health_server(self, undo: ExitStack, port: int) -> None:
        group = self._group
        server = HealthServer(
            host=group.health_host,
            port=port,
            checks=self._health.checks(),
            metrics=group.metrics,
            clock=self._clock,
        )
        server.start()
        group._health_server = server  # noqa: SLF001 - as above
        undo.callback(self._stop_health_server, server)

    def _stop_health_server(self, server: HealthServer) -> None:
        server.stop()
        self._group._health_server = None  # noqa: SLF001 - as above

    def _start_monitors(self, undo: ExitStack) -> None:
        group = self._group
        if group.watchdog_threshold is not None:
            watchdog = Watchdog.with_reader(
                self._health.beat_ages,
                stall_threshold=group.watchdog_threshold
                + (0.0 if self._parent is None else _PARENT_KILL_MARGIN),
                check_interval=group.watchdog_interval,
                clock=self._clock,
                events=self._events,
                crash_file=self._crash_file,
                before_kill=self._before_kill,
            )
            watchdog.start()
            undo.callback(watchdog.stop)
        reporter = StatusReporter(
            self._health, self._notifier, self._parent, metrics=group.metrics, clock=self._clock
        )
        reporter.start()
        undo.callback(reporter.stop)

    def _before_kill(self, stalls: Sequence[BeatAge]) -> None:
        """Only those that are silent are to blame, and whoever supervises us learns why we go."""
        threshold = self._group.watchdog_threshold or 0.0
        for runner in self._runners:
            runner.blame_only_stalled(threshold)
        self._notifier.stalled(
            "; ".join(f"{name} stalled for {elapsed:.1f} s" for name, elapsed in stalls)
        )

    def _report_started(self) -> None:
        address = self._group.health_address
        self._events.emit(
            GroupStarted(
                loops=self._group.names,
                health_address="" if address is None else f"http://{address[0]}:{address[1]}",
            )
        )
        if self._parent is not None:
            self._parent.send(
                "group",
                loops=self._group.names,
                threshold=self._group.watchdog_threshold,
                crash_file=str(self._crash_file.path),
            )
        self._notifier.ready(f"{len(self._runners)} loop{'s' if len(self._runners) > 1 else ''}")

    # --- between ---

    def _wait(self) -> None:
        """Until somebody asks for the end, a loop has crashed, or all are done."""
        stop_listening = self._run_handle.stop_requested.subscribe(self._changed.set)
        try:
            while not self._should_stop():
                self._clock.wait(self._changed, max_wait())
                self._changed.clear()
        finally:
            stop_listening()

    def _should_stop(self) -> bool:
        runners = self._runners
        return (
            self._run_handle.is_stopping
            or any(runner.has_crashed for runner in runners)
            or all(runner.is_finished for runner in runners)
        )

    # --- ending ---

    def _stop_loops(self, reason: str) -> None:
        """Tell all, then wait for all: three slow loops take the time of the slowest."""
        group = self._group
        group._stopping = True  # noqa: SLF001 - as above
        self._events.emit(GroupStopping(reason=reason))
        self._notifier.stopping()
        deadlines = [self._stop_deadline(runner) for runner in self._runners]
        for runner, deadline in zip(self._runners, deadlines, strict=True):
            if not runner.is_finished:
                runner.request_stop(deadline.remaining() or 0.0)
        for runner, deadline in zip(self._runners, deadlines, strict=True):
            runner.wait(Deadline(deadline.at + _REPORT_MARGIN, self._clock))

    def _stop_deadline(self, runner: LoopRunner) -> Deadline:
        own: float | None = getattr(runner.loop, "shutdown_timeout", None)
        return self._run_handle.deadline.earlier(
            Deadline.after(self._group.shutdown_timeout if own is None else own, self._clock)
        )

    def _stop_reason(self) -> str:
        if any(runner.has_crashed for runner in self._runners):
            return "crashed"
        received = self._coordinator.signal if self._coordinator is not None else None
        return (
            signal.Signals(received).name
            if received is not None
            else "asked"
            if self._run_handle.is_stopping
            else "done"
        )

    def _overdue(self) -> tuple[str, ...]:
        return tuple(runner.name for runner in self._runners if runner.is_overdue)

    def _save_stacks(self) -> None:
        if overdue := self._overdue():
            self._crash_file.dump(f"{', '.join(overdue)} did not stop in time")

    def _finish(self) -> None:
        overdue = self._overdue()
        self._group._stopped_in_time = not overdue  # noqa: SLF001 - as above
        self._events.emit(
            GroupStopped(lasted=self._clock.monotonic() - self._started_at, overdue=overdue)
        )
        if overdue:
            self._fail_overdue(overdue)
        for runner in self._runners:
            if runner.error is not None:
                raise runner.error

    def _fail_overdue(self, overdue: Sequence[str]) -> None:
        """Loops that did not stop: nothing joins them, nothing waits for them."""
        message = f"{', '.join(overdue)} did not stop in time; see {self._crash_file.path}"
        if self._coordinator is None:
            why = next((runner.error for runner in self._runners if runner.has_crashed), None)
            raise ShutdownTimeoutError(
                f"{message}; raise shutdown_timeout, or have handlers look at context.cancelled"
            ) from why
        logging.getLogger("longwatch.runtime").critical(message)
        self._group.before_exit()
        os._exit(1)


def _readiness_threshold(group: LoopGroup) -> float | None:
    if group.readiness_threshold is not None or group.watchdog_threshold is None:
        return group.readiness_threshold
    return READINESS_FRACTION * group.watchdog_threshold


def _names(loops: Sequence[Runnable]) -> tuple[str, ...]:
    """Each loop's own, else by its place; only explicit ones can be equal."""
    if not loops:
        raise UsageError("a group needs at least one loop")
    for loop in loops:
        if isinstance(loop, type):
            raise UsageError(
                f"{loop.__name__} is a class; give the group one that was made: {loop.__name__}(…)"
            )
        if not isinstance(loop, Runnable):
            raise UsageError(
                f"{loop!r} is no Runnable: it needs run, shutdown, running, __enter__ and __exit__"
            )
    given: list[str | None] = [getattr(loop, "name", None) for loop in loops]
    if len({id(loop) for loop in loops}) < len(loops):
        raise UsageError("one loop is twice in this group; make another of its kind")
    named = [name for name in given if name is not None]
    if duplicates := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(
            f"loops of a group need different names; more than one is called "
            f"{', '.join(duplicates)}"
        )
    return tuple(name or _unused_name(named, f"loop-{index}") for index, name in enumerate(given))


def _unused_name(taken: Sequence[str], name: str) -> str:
    """That name, or one that begins like it, if somebody else is called so."""
    return name if name not in taken else _unused_name(taken, f"{name}-unnamed")
