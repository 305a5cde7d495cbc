"""One run of a group of loops.

The steps of a run
    install signal handlers → open the health port → start a thread for every loop → start the
    watchdog → notify the supervisor … a stop is requested, a loop crashes, or all loops are done …
    report not ready → request the stop of all loops at once, each with its limit → wait for all,
    under the latest limit → stop watchdog and health port → restore the former signal handlers

How it ends
    all stopped in time      run returns; without a signal, a parent gets the report `finished`:
                             its own code has decided on the end
    a loop crashed           its error is raised, after the others have stopped
    a limit has passed       with signals installed: stacks on record, exit 1; else
                             ShutdownTimeoutError, and threads left behind
    a second signal          exit 128 + n, at once
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events.runtime import GroupStarted, GroupStopped, GroupStopping
from longwatch.engine.engine_loop import EngineLoop
from longwatch.engine.exclusive import ExclusiveLock
from longwatch.engine.policy import EngineEnvironment
from longwatch.engine.run_guard import RunHandle, max_wait
from longwatch.errors import ShutdownTimeoutError, UsageError
from longwatch.host.crash_file import CrashFile
from longwatch.host.health_server import HealthServer
from longwatch.host.parent_channel import ParentChannel
from longwatch.host.runtime_dir import private_file_directory
from longwatch.host.sdnotify import SdNotifier
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.host.watchdog import BeatAge, Watchdog
from longwatch.runtime.health_checks import GroupHealth
from longwatch.runtime.idle_end import CHECK_SECONDS, IdleEnd
from longwatch.runtime.loop_runner import LoopRunner
from longwatch.runtime.status_reporter import EventMetrics, StatusReporter

if TYPE_CHECKING:
    from longwatch.runtime.group import LoopGroup

READINESS_FRACTION = 0.9
"""Fraction of the watchdog threshold after which a silent loop is not ready. Traffic moves away
before the kill.
"""
_PARENT_KILL_MARGIN = 10.0
"""Seconds that a parent has to kill a stalled process before the watchdog of that process does."""
_REPORT_MARGIN = 0.25
"""Seconds after its limit in which a loop reports that it did not stop."""


class GroupRun:
    """One run of a group, from its first thread to its last.

    Other threads may read `is_stopping` and `health_address`. Only the thread of `run` changes
    them.
    """

    def __init__(
        self,
        group: LoopGroup,
        run_handle: RunHandle,
        *,
        coordinator: ShutdownCoordinator | None,
        parent: ParentChannel | None,
        runs_suspects: bool = False,
    ) -> None:
        self.is_stopping = False
        self._group = group
        self._run_handle = run_handle
        self._coordinator = coordinator
        self._clock = group.clock
        self._events = group.events
        self._parent = parent
        self._runs_suspects = runs_suspects
        self._health_server: HealthServer | None = None
        self._notifier = SdNotifier.from_environment()
        self._crash_file = CrashFile("group", clock=group.clock)
        self._changed = Wakeup()
        self._started_at = group.clock.monotonic()
        self._runners = self._make_runners()
        threshold, interval = group.watchdog_threshold, group.watchdog_interval
        self.health = GroupHealth(
            self._runners,
            is_draining=lambda: group.draining,
            stale_after=_readiness_threshold(group),
            not_live_after=None if threshold is None else threshold + 2 * interval,
            clock=group.clock,
            events=group.events,
        )

    def run(self, *, visibility_timeout: float, wait_time_seconds: float) -> None:
        """Open, start, wait, stop, report. Blocks. Raises the error of the first loop
        that crashed.
        """
        if self._group.draining:
            for runner in self._runners:
                runner.forward("drain")
        with ExitStack() as undo:
            self._open(undo)
            with self._stopping_loops():
                for runner in self._runners:
                    runner.start(
                        visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds
                    )
                self._start_monitors(undo)
                self._report_started()
                self._wait()
        self._finish()

    @property
    def health_address(self) -> tuple[str, int] | None:
        """The address of the health port; None while it is closed."""
        return None if self._health_server is None else self._health_server.address

    @contextmanager
    def _stopping_loops(self) -> Iterator[None]:
        """Stop all loops at the end of the block, whatever is raised inside."""
        reason = "failed"
        try:
            yield
            reason = self._stop_reason()
        finally:
            self._stop_loops(reason)
            if overdue := self._overdue():
                self._run_handle.has_left_work = True
                self._crash_file.dump(f"{', '.join(overdue)} did not stop in time")
                self._write_task_stacks()

    # --- beginning ---

    def _make_runners(self) -> list[LoopRunner]:
        exclusive_lock = ExclusiveLock()
        runners: list[LoopRunner] = []
        for loop, name in zip(self._group.loops, self._group.names, strict=True):
            attach: Callable[[EngineEnvironment], None] | None = getattr(loop, "attach", None)
            if attach is None and self._runs_suspects:
                continue  # it has no rows
            if attach is not None:
                attach(
                    EngineEnvironment(
                        name=name,
                        events=self._events,
                        exclusive_lock=exclusive_lock,
                        parent=self._parent,
                        runs_suspects=self._runs_suspects,
                    )
                )
            runners.append(
                LoopRunner(
                    loop, name, clock=self._clock, events=self._events, on_change=self._changed.set
                )
            )
        return runners

    def _open(self, undo: ExitStack) -> None:
        """Open the ports and files that the run needs. Raises before any loop starts."""
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
                    self.health.gauges if self._parent is not None else self.health.all_gauges
                )
            )
        if self._group.health_port is not None and self._parent is None:
            self._start_health_server(undo, self._group.health_port)

    def _open_crash_file(self) -> None:
        """Open the crash file at its configured path, else in the runtime directory: a run must
        not fail for want of one.
        """
        try:
            self._crash_file.open()
        except UsageError:
            self._crash_file = CrashFile(
                "group", directory=private_file_directory(), clock=self._clock
            )
            self._crash_file.open()

    def _start_health_server(self, undo: ExitStack, port: int) -> None:
        group = self._group
        server = HealthServer(
            host=group.health_host,
            port=port,
            checks=self.health.checks(),
            metrics=group.metrics,
            clock=self._clock,
        )
        server.start()
        self._health_server = server
        undo.callback(self._stop_health_server, server)

    def _stop_health_server(self, server: HealthServer) -> None:
        server.stop()
        self._health_server = None

    def _start_monitors(self, undo: ExitStack) -> None:
        group = self._group
        if group.watchdog_threshold is not None:
            watchdog = Watchdog.with_reader(
                self.health.beat_ages,
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
            self.health, self._notifier, self._parent, metrics=group.metrics, clock=self._clock
        )
        reporter.start()
        undo.callback(reporter.stop)

    def _before_kill(self, stalls: Sequence[BeatAge]) -> None:
        """Blame only the silent loops, report the reason to the supervisor of this process, and
        write the stacks of coroutines, which the stacks of threads do not show.
        """
        threshold = self._group.watchdog_threshold or 0.0
        for runner in self._runners:
            runner.blame_only_stalled(threshold)
        self._notifier.stalled(
            "; ".join(f"{name} stalled for {elapsed:.1f} s" for name, elapsed in stalls)
        )
        self._write_task_stacks()

    def _write_task_stacks(self) -> None:
        for runner in self._runners:
            if stacks := runner.describe_tasks():
                self._crash_file.write(f"Tasks of {runner.name}:\n{stacks}")

    def _report_started(self) -> None:
        address = self.health_address
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
                slots=sum(getattr(loop, "concurrency", 1) for loop in self._group.loops),
                threshold=self._group.watchdog_threshold,
                stale_after=_readiness_threshold(self._group),
                crash_file=str(self._crash_file.path),
                stores=self._store_places(),
            )
        self._notifier.ready(f"{len(self._runners)} loop{'s' if len(self._runners) > 1 else ''}")

    def _store_places(self) -> list[dict[str, str]]:
        loops = (loop for loop in self._group.loops if isinstance(loop, EngineLoop))
        places = (loop.store_place() for loop in loops)
        return [place for place in places if place is not None]

    # --- between ---

    def _wait(self) -> None:
        """Wait until a stop is requested, a loop crashes or all loops are done. In a process for
        suspects also until none is left.
        """
        stop_listening = self._run_handle.stop_requested.subscribe(self._changed.set)
        idle_end = (
            IdleEnd([runner.loop for runner in self._runners], self._clock)
            if self._runs_suspects
            else None
        )
        try:
            while not (self._should_stop() or (idle_end is not None and idle_end.is_over())):
                self._clock.wait(self._changed, max_wait() if idle_end is None else CHECK_SECONDS)
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
        """Ask all loops to stop, then wait for all. Slow loops stop side by side."""
        self.is_stopping = True
        self._events.emit(GroupStopping(reason=reason))
        self._notifier.stopping()
        deadlines = [self._stop_deadline(runner) for runner in self._runners]
        for runner, deadline in zip(self._runners, deadlines, strict=True):
            if not runner.is_finished:
                runner.request_stop(deadline.remaining() or 0.0)
        for runner, deadline in zip(self._runners, deadlines, strict=True):
            runner.wait(Deadline(deadline.at + _REPORT_MARGIN, self._clock))
            if runner.ended_at > deadline.at:
                self._run_handle.has_left_work = True

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

    def _finish(self) -> None:
        overdue = self._overdue()
        self._events.emit(
            GroupStopped(lasted=self._clock.monotonic() - self._started_at, overdue=overdue)
        )
        if overdue:
            self._fail_overdue(overdue)
        for runner in self._runners:
            if runner.error is not None:
                raise runner.error
        if self._parent is not None and not self._is_stopped_by_signal:
            self._parent.report_finished()

    @property
    def _is_stopped_by_signal(self) -> bool:
        return self._coordinator is not None and self._coordinator.signal is not None

    def _fail_overdue(self, overdue: Sequence[str]) -> None:
        """Fail because of loops that did not stop. Their threads are not joined."""
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
